"""Models, data and settings that cannot be what they are given for: rows of the table in `test_bad_input_table.py`."""

from __future__ import annotations

import gzip
import math
from typing import TYPE_CHECKING

from tests.cli.bad_inputs import GOOD, Bad, Room, asked, labelled, png, without

if TYPE_CHECKING:
    from pathlib import Path

TAGGED = "token\ttag\nfilm\tO\nParis\tB-LOC\n\nplot\tO\n"
NUMBERS = "text\tlabel\nthe film was good\t1\na dull plot\t{}\n"


def linked(room: Room) -> Path:
    """Data whose training split is a link to nothing."""
    room.write("mine/dev.tsv", GOOD)
    (room.tmp / "mine" / "train.tsv").symlink_to("/nowhere/mine.tsv")
    return room.tmp / "mine"


def packed(room: Room, text: bytes, cut: int = 0) -> Path:
    """A compressed corpus, without its last bytes."""
    content = gzip.compress(text)
    return room.write("a.txt.gz", content[: len(content) - cut])


LAST_WEIGHT = "encoder.layer.1.output.dense.weight` of `"

#: Data that are not what they are given for.
DATA = {
    "a number beyond float32": Bad(
        lambda room: room.finetune("--task", "regression", "--data", room.splits("tsv", NUMBERS.format("1e300"))),
        ("train.tsv` line 3", "`1e300` in column `label` is too large"),
    ),
    "a number whose square is beyond float32": Bad(
        lambda room: room.finetune("--task", "regression", "--data", room.splits("tsv", NUMBERS.format("-1e30"))),
        ("train.tsv` line 3", "`-1e30` in column `label` is too large"),
    ),
    **{
        f"a table in {encoding}": Bad(
            lambda room, encoding=encoding: room.finetune("--data", room.splits("tsv", GOOD.encode(encoding))),
            ("train.tsv` is text in utf-", f"iconv -f {said} -t utf-8"),
        )
        for encoding, said in (
            ("utf-16", "utf-16"),
            ("utf-16-le", "utf-16le"),
            ("utf-16-be", "utf-16be"),
            ("utf-32", "utf-32"),
        )
    },
    "a corpus in UTF-16": Bad(
        lambda room: without(
            "--text-column",
            room.distill("--layers", 1, "--corpus", room.write("mine.txt", GOOD.encode("utf-16-le"))),
        ),
        ("mine.txt` is text in utf-16le", "iconv -f utf-16le"),
    ),
    "requests in UTF-16": Bad(asked("txt", "a film\n".encode("utf-16")), ("asked.txt` is text in utf-16", "iconv")),
    "a zip file of requests": Bad(asked("zip", b"PK\x03\x04\n"), ("asked.zip` is a zip file", "not text")),
    "requests in Parquet": Bad(asked("parquet", b"PAR1\n"), ("asked.parquet` is a Parquet file", "not text")),
    "requests with a column twice": Bad(asked("csv", "text,text\na,b\n"), ("names column `text` twice",)),
    "a picture for a table": Bad(
        lambda room: room.finetune("--data", room.splits("tsv", png())), ("train.tsv` is a picture, not text",)
    ),
    "a PDF file for a corpus": Bad(
        lambda room: without(
            "--text-column", room.distill("--layers", 1, "--corpus", room.write("a.txt", "%PDF-1.7\n"))
        ),
        ("a.txt` is a PDF file, not text",),
    ),
    "a compressed corpus without a cache": Bad(
        lambda room: without(
            "--text-column", room.distill("--layers", 1, "--corpus", packed(room, b"a film\n"), "--token-cache", "off")
        ),
        ("a.txt.gz` is compressed", "give a folder with `--token-cache`"),
    ),
    "a compressed corpus that is cut": Bad(
        lambda room: without(
            "--text-column", room.distill("--layers", 1, "--corpus", packed(room, b"a film\n", cut=9))
        ),
        ("a.txt.gz` is not a whole .gz file", "copy it again"),
    ),
    "an archive for a corpus": Bad(
        lambda room: without(
            "--text-column", room.distill("--layers", 1, "--corpus", room.write("a.zip", b"PK\x03\x04"))
        ),
        ("a.zip` is an archive", "unzip a.zip"),
    ),
    "a file for a folder of tokens": Bad(
        lambda room: room.distill("--layers", 1, "--token-cache", room.write("tokens", "mine")),
        ("`--token-cache` is", "cannot be written", "choose another"),
    ),
    "a token cache elsewhere": Bad(
        lambda room: room.distill("--layers", 1, "--token-cache", "s3://bucket/tokens"),
        ("`--token-cache` is `s3://bucket/tokens`", "on this machine alone"),
    ),
    "no processes to make tokens": Bad(lambda room: room.distill("--layers", 1, "--workers", 0), ("workers",), 2),
    "a table in Latin 1": Bad(
        lambda room: room.finetune("--data", room.splits("tsv", GOOD.replace("dull", "passé").encode("latin1"))),
        ("line 3 is not UTF-8: byte `0xe9`", "iconv -f latin1"),
    ),
    "a table of one line": Bad(
        labelled("tsv", "the film was good\tyes"),
        ("its only line, `the film was good", "taken for the names of columns"),
    ),
    "a text file of one line": Bad(
        labelled("txt", "a film"), ("its only line, `a film`, is taken for the names of columns",)
    ),
    **{
        f"an object without its labels, for {task}": Bad(
            lambda room, task=task, good=good, lacking=lacking: room.finetune(
                "--task", task, "--data", room.splits("jsonl", f"{good}\n{lacking}\n")
            ),
            ("train.jsonl` line 2",),
        )
        for task, good, lacking in (
            ("classification", '{"text": "a film", "label": "yes"}', '{"text": "a plot"}'),
            ("regression", '{"text": "a film", "label": 1}', '{"text": "a plot"}'),
            ("tagging", '{"tokens": ["film", "plot"], "tags": ["A", "B"]}', '{"tokens": ["film"]}'),
            (
                "multiple-choice",
                '{"question": "a", "choices": ["film", "plot"], "answer": 0}',
                '{"question": "a", "choices": ["film", "plot"]}',
            ),
            (
                "question-answering",
                '{"question": "a", "context": "a film", "answers": {"text": ["film"], "answer_start": [2]}}',
                '{"question": "a", "answers": {"text": ["film"], "answer_start": [2]}}',
            ),
        )
    },
    "a link to nothing": Bad(
        lambda room: room.finetune("--data", linked(room)), ("train.tsv` is a link to `/nowhere/mine.tsv`, where",)
    ),
    "a link to nothing as the data": Bad(
        lambda room: room.finetune("--data", linked(room) / "train.tsv"), ("is a link to `/nowhere/mine.tsv`, where",)
    ),
    "a header above tagged words": Bad(
        lambda room: room.finetune("--task", "tagging", "--data", room.splits("tsv", TAGGED)),
        ("train.tsv` line 1 reads `token` and `tag`", "remove the line"),
    ),
}

#: Settings that contradict each other or stand for nothing.
SETTINGS = {
    "labels for post-training": Bad(
        lambda room: room.post_training("--task", "classification"),
        ("`--task` is `classification`", "`--post-training` sees no labels"),
        2,
    ),
    "a corpus for a training with labels": Bad(
        lambda room: room.quantize("--corpus", room.data),
        ("`--corpus` is", "changes nothing without `--post-training`"),
        2,
    ),
    "post-training of nothing": Bad(
        lambda room: room.post_training("--weights", "float"), ("`--weights` is `float`", "give `int8`"), 2
    ),
    "post-training steps for a format that takes none": Bad(
        lambda room: room.post_training("--weights", "int8", "--max-steps", 9),
        ("`--max-steps` is `9`", "`int8` is rounded without a training step"),
        2,
    ),
    "a clip below all weights": Bad(
        lambda room: room.quantize("--weight-clip", "1e-40"), ("`--weight-clip` is `1e-40`", "give 0 for none"), 2
    ),
    "a clip beyond all activations": Bad(
        lambda room: room.quantize("--activation-clip", "1e300"), ("`--activation-clip` is `1e300`",), 2
    ),
    "a first stage longer than both": Bad(
        lambda room: room.quantize("--stages", 2, "--first-stage", 99), ("`--first-stage` is 99", "`--max-steps` 2"), 2
    ),
    "a first stage longer than all epochs": Bad(
        lambda room: without(
            "--max-steps", room.quantize("--model", room.artifact, "--stages", 2, "--first-stage", 99)
        ),
        ("`--first-stage` is 99", "3 epochs are 36 steps"),
    ),
    "terms of no weight": Bad(
        lambda room: room.distill("--layers", 1, "--terms", "relations:0"), ("`--terms` is", "are 0"), 2
    ),
    "relations of no weight": Bad(
        lambda room: room.distill("--layers", 1, "--relation-weights", "0,0,0"), ("`--relation-weights`", "all 0"), 2
    ),
    "heads that do not divide the width": Bad(
        lambda room: room.distill("--hidden", 30, "--heads", 4), ("`--heads` is 4", "divide `--hidden` 30")
    ),
}

#: Models that cannot be what they are given for.
MODELS = {
    "a student too large for the machine": Bad(
        lambda room: room.distill("--hidden", 2**20, "--heads", 2),
        ("parameters and takes about", "GiB of memory", "`--hidden`"),
    ),
    "a student of more blocks than a model may have": Bad(
        lambda room: room.distill("--layers", 3_000), ("`--layers` is `3000`", "2048"), 2
    ),
    "a budget that is too small for any student": Bad(
        lambda room: room.distill("--max-bytes", "2kB"),
        ("`--max-bytes` is 2,000, and the smallest student takes", "`--trim`"),
    ),
    "a budget that the teacher keeps to": Bad(
        lambda room: room.distill("--max-params", "9B"), ("`--max-params` is 9,000,000,000", "the teacher itself has")
    ),
    "a budget that is no size": Bad(
        lambda room: room.distill("--max-bytes", "10 megs"), ("`--max-bytes` is `10 megs`", "`10MB`"), 2
    ),
    "a budget beside a student": Bad(
        lambda room: room.distill("--student", room.base, "--max-ms", 3), ("leave out `--max-ms` or `--student`",), 2
    ),
    "fewer pieces than always stay": Bad(
        lambda room: [*room.distill("--layers", 1, "--keep", 3), "--trim"], ("`--keep` is 3", "always stay")
    ),
    "pieces to keep without trimming": Bad(
        lambda room: room.distill("--layers", 1, "--keep", 3), ("`--keep` is 3", "`--trim`"), 2
    ),
    "word pieces of images": Bad(
        lambda room: [*room.distill("--teacher", room.viewer, "--layers", 1), "--trim"],
        ("`--trim` drops word pieces, and the teacher sees images",),
    ),
    "a preset that is not known": Bad(
        lambda room: room.distill("--layers", 1, "--preset", "phone"), ("`--preset` is `phone`", "'laptop'"), 2
    ),
    "factorised embeddings of a family that has none": Bad(
        lambda room: room.distill("--teacher", room.viewer, "--embedding", 8), ("has no factorised embeddings",)
    ),
    "a student of images for a teacher of texts": Bad(
        lambda room: room.distill("--student", room.viewer), ("`--student` is", "takes images", "teacher takes text")
    ),
    "a student of texts for a teacher of images": Bad(
        lambda room: room.distill("--teacher", room.viewer, "--student", room.base),
        ("`--student` is", "takes text", "teacher takes images"),
    ),
    "a base with a weight that is no number": Bad(
        lambda room: room.finetune("--model", room.broken(math.nan)), (LAST_WEIGHT, "nan or infinity", "changed`")
    ),
    "a base with an infinite weight, to mask": Bad(
        lambda room: room.mask("--model", room.broken(math.inf), "--blocks", "0-1"), (LAST_WEIGHT, "nan or infinity")
    ),
    "a base with an infinite weight, to quantize": Bad(
        lambda room: room.quantize("--model", room.broken(-math.inf)), (LAST_WEIGHT, "nan or infinity")
    ),
    "a teacher with a weight that is no number": Bad(
        lambda room: room.distill("--teacher", room.broken(math.nan), "--layers", 1), (LAST_WEIGHT, "nan or infinity")
    ),
    "a model with an infinite weight, to export": Bad(
        lambda room: ["export", room.broken(math.inf), "--out", room.tmp / "m.onnx"], (LAST_WEIGHT, "nan or infinity")
    ),
    "text that calls itself ONNX": Bad(
        lambda room: ["predict", room.write("m.onnx", "no model\n"), "good"], ("does not open", "m.onnx`")
    ),
    "an empty ONNX file": Bad(lambda room: ["bench", room.write("m.onnx", "")], ("it is empty", "m.onnx`")),
    "an ONNX file that is not there": Bad(
        lambda room: ["evaluate", room.tmp / "m.onnx", "--data", room.data], ("no file at", "m.onnx`")
    ),
    "a split to compare on without data": Bad(
        lambda room: ["export", room.base, "--out", room.tmp / "out", "--task", "sst2"],
        ("`--task` is for `--data`",),
        2,
    ),
    "no blocks over weights of two": Bad(
        lambda room: room.finetune("--model", room.changed(num_hidden_layers=0)),
        ("encoder.layer.0.", "has no place", "number of blocks"),
    ),
    "a chunk that divides few texts": Bad(
        lambda room: room.finetune("--model", room.changed(chunk_size_feed_forward=7)),
        ("`chunk_size_feed_forward` `7`", "set it to 0"),
    ),
    "a config that asks for attention maps": Bad(
        lambda room: room.finetune("--model", room.changed(output_attentions=True)),
        ("`output_attentions` `True`", "set it to false"),
    ),
    "a config that asks for tuples": Bad(
        lambda room: room.mask("--model", room.changed(return_dict=False)), ("`return_dict` `False`", "set it to true")
    ),
    "a width that is a text": Bad(
        lambda room: ["inspect", room.changed(hidden_size="x")],
        ("cannot be used: `hidden_size` is `x`, which is no int; mend it",),
    ),
    "an activation nobody knows": Bad(
        lambda room: room.finetune("--model", room.changed(hidden_act="gulu")),
        ("does not build BertModel: `hidden_act` is `gulu`, which Transformers does not know",),
    ),
    "a padding token beyond the vocabulary": Bad(
        lambda room: room.finetune("--model", room.changed(pad_token_id=900)), ("does not build BertModel",)
    ),
    "an index of weights without metadata": Bad(
        lambda room: room.finetune("--model", room.indexed({"weight_map": {"x": "a.safetensors"}})),
        ("index.json` is not an index of weights: it has no object `metadata`",),
    ),
    "an index of weights without a map": Bad(
        lambda room: room.finetune("--model", room.indexed({"metadata": {}})),
        ("index.json` is not an index of weights: it has no object `weight_map`",),
    ),
    "an index of weights that is a list": Bad(
        lambda room: room.finetune("--model", room.indexed([])),
        ("index.json` is not an index of weights: it has no object",),
    ),
}
