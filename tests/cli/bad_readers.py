"""Tables, columns, labels and settings that are almost right: rows of the table in `test_bad_input_table.py`."""

from __future__ import annotations

import io
import json
import os
import struct
from typing import TYPE_CHECKING, Any

from tests.cli.bad_inputs import GOOD, Bad, Room, asked, configured, labelled, picture_folders, pipe, png, without

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow

#: Bytes of an argument that are no UTF-8, as Python passes them on.
HALVED = "caf\udce9"


def on(task: str, ending: str, *lines: str) -> Callable[[Room], list[object]]:
    """A run of some kind on data of these lines."""
    return lambda room: room.finetune("--task", task, "--data", room.splits(ending, "\n".join([*lines, ""])))


def tweets(room: Room, labels: str) -> Path:
    """A folder in TweetEval's layout, with these labels for its two texts."""
    room.write("mine/train_text.txt", "a film\na plot\n")
    room.write("mine/train_labels.txt", labels)
    return room.write("mine/mapping.txt", "0\tsad\n1\tglad\n").parent


def stored(columns: Callable[[], Any], change: Callable[[bytes], bytes] = bytes) -> Callable[[Room], list[object]]:
    """A run on a Parquet file of these columns, with something changed in it."""

    def command(room: Room) -> list[object]:
        import pyarrow.parquet as parquet

        stream = io.BytesIO()
        parquet.write_table(columns(), stream, compression="none", use_dictionary=False)
        return room.finetune("--data", room.splits("parquet", change(stream.getvalue())))

    return command


def table(**columns: Any) -> pyarrow.Table:
    """A table of Arrow."""
    import pyarrow

    return pyarrow.table(columns)


def twice() -> pyarrow.Table:
    """A table with two columns of one name."""
    import pyarrow

    return pyarrow.Table.from_arrays([pyarrow.array(["a film", "a plot"])] * 3, names=["text", "text", "label"])


def learned_from(ending: str, content: str | bytes) -> Callable[[Room], list[object]]:
    """A student of a corpus that is one file."""
    return lambda room: without(
        "--text-column", room.distill("--layers", 1, "--corpus", room.write(f"mine.{ending}", content))
    )


def among(room: Room, name: str, make: Callable[[Path], object]) -> Path:
    """Data whose training split is what `make` puts there."""
    room.write("mine/dev.tsv", GOOD)
    make(room.tmp / "mine" / name)
    return room.tmp / "mine"


def digits(room: Room, *shape: int) -> list[object]:
    """A run on MNIST's files whose header promises so many images of so many pixels."""
    for split in ("train", "dev"):
        room.write(f"mine/{split}-images-idx3-ubyte", b"\0\0\x08\x03" + struct.pack(">3I", *shape))
        room.write(f"mine/{split}-labels-idx1-ubyte", b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\0\1")
    return room.images()


def article(**paragraph: object) -> str:
    """SQuAD's JSON with one paragraph."""
    return json.dumps({"data": [{"title": "a", "paragraphs": [paragraph]}]})


COMMAS = GOOD.replace("\t", ",")

#: Files that are not laid out as their endings say.
LAYOUTS = {
    "semicolons in a CSV file": Bad(
        labelled("csv", *GOOD.replace("\t", ";").splitlines()),
        ("train.csv` parts its fields by semicolons where commas are expected", "`text;label`"),
    ),
    "commas in a TSV file": Bad(labelled("tsv", *COMMAS.splitlines()), ("by commas where tabs are expected",)),
    "tabs in a CSV file of requests": Bad(asked("csv", "text\tid\na film\t1\n"), ("by tabs where commas",)),
    "semicolons in a corpus": Bad(learned_from("csv", "text;id\na film;1\n"), ("by semicolons where commas",)),
    "vertical bars in a corpus": Bad(learned_from("tsv", "text|id\na film|1\n"), ("by vertical bars where tabs",)),
    "requests without a row": Bad(asked("csv", "text\n"), ("asked.csv` holds no rows",)),
    "lines that end as on an old Mac": Bad(
        lambda room: room.finetune("--data", room.splits("tsv", GOOD.replace("\n", "\r"))),
        ("carriage returns alone", "tr '\\r' '\\n'"),
    ),
    "a quote that is not closed": Bad(
        labelled("csv", *COMMAS.splitlines(), '"a film,yes'), ("line 4", "is not closed")
    ),
    "a quote that is not closed in a corpus": Bad(learned_from("csv", 'text\n"a film\n'), ("is not closed",)),
    "an old Excel file": Bad(
        lambda room: room.finetune("--data", room.splits("csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99))),
        ("train.csv` is an old Excel or Word document",),
    ),
    "a NUL byte": Bad(labelled("tsv", *GOOD.splitlines(), "a\0film\tyes"), ("line 4 holds a NUL byte",)),
    "a gigabyte of NUL bytes": Bad(
        lambda room: room.finetune(
            "--data", among(room, "train.csv", lambda path: (path.write_text(COMMAS), os.truncate(path, 2**30)))
        ),
        ("train.csv` line 4 holds a NUL byte",),
    ),
    "a text of megabytes": Bad(
        labelled("csv", "text,label", f"{'a film ' * 200_000},yes", "a plot,no"),
        ("line 2", "characters, more than 1,048,576"),
    ),
    "a folder for a split": Bad(
        lambda room: room.finetune("--data", among(room, "train.tsv", os.mkdir)), ("train.tsv` is a folder",)
    ),
    "a pipe for a split": Bad(
        lambda room: room.finetune("--data", among(room, "train.tsv", pipe)), ("train.tsv` is a pipe",)
    ),
    "a pipe for a corpus": Bad(
        lambda room: room.distill("--layers", 1, "--corpus", pipe(room.tmp / "a.txt")), ("a.txt", "it is a pipe")
    ),
    "images without folders of classes": Bad(
        lambda room: (room.write("mine/train/1.png", png()), room.images())[1],
        ("holds no images in folders of their classes", "<class>"),
    ),
    "PostScript for an image": Bad(
        lambda room: picture_folders(
            room, lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        ),
        ("2.png", "no known image format"),
    ),
    "a zip file that is a pipe": Bad(
        lambda room: (pipe(room.tmp / "mine" / "a.zip"), room.images())[1], ("read: it is a pipe, not a file;",)
    ),
    "two zip files": Bad(
        lambda room: ([room.write(f"mine/{name}.zip", b"") for name in "ab"], room.images())[1], ("a.zip, b.zip",)
    ),
    "images of no pixels": Bad(lambda room: digits(room, 2, 0, 0), ("holds nothing", "2 x 0 x 0")),
    "a Parquet file with a column twice": Bad(stored(twice), ("names column `text` twice",)),
    "a corpus in Parquet with a column twice": Bad(
        lambda room: (stored(twice)(room), room.distill("--layers", 1, "--corpus", room.tmp / "mine"))[1],
        ("names column `text` twice",),
    ),
    "text in Parquet that is not UTF-8": Bad(
        stored(lambda: table(text=["aXYZ", "b"], label=["x", "y"]), lambda all: all.replace(b"aXYZ", b"a\xff\xfe\xfd")),
        ("train.parquet` holds text that is not UTF-8",),
    ),
}

#: Values that are not what their columns are for.
VALUES = {
    "a key twice": Bad(
        labelled("jsonl", '{"text": "a", "text": "b", "label": "x"}'), ("line 1", "key `text`", "twice")
    ),
    "a key twice in a request": Bad(asked("jsonl", '{"text": "a", "text": "b"}\n'), ("key `text` stands there twice",)),
    "columns that differ in capitals": Bad(
        labelled("csv", "text,Text,label", "a,b,yes", "c,d,no"), ("`text` and `Text`", "capitals")
    ),
    "a column twice for a pair": Bad(
        lambda room: room.finetune("--text-column", "text,text"), ("`text,text`", "twice")
    ),
    "three columns for a pair": Bad(
        lambda room: room.finetune(
            "--data", room.splits("csv", "a,b,c,label\n1,2,3,yes\n4,5,6,no\n"), "--text-column", "a,b,c"
        ),
        ("`a`, `b`, `c`", "name two at most"),
    ),
    "shares that are no parts of one": Bad(
        lambda room: room.finetune("--data", room.data / "train.tsv", "--shares", "0.8,0.3"),
        ("`--shares` is `0.8,0.3`", "add up to 1.1"),
        2,
    ),
    "a share below 0": Bad(
        lambda room: [*room.finetune("--data", room.data / "train.tsv"), "--shares=-0.1,1.1"],
        ("leaves no rows for train",),
        2,
    ),
    "shares of a folder": Bad(
        lambda room: room.finetune("--shares", "0.9,0.1"), ("shares divide a single file", "is a folder")
    ),
    "shares in a config": Bad(configured("shares: [0.9]\n"), ("`shares` is `[0.9]`", "two or three numbers")),
    "more shares than rows": Bad(
        lambda room: room.finetune(
            "--data", room.write("mine.csv", "text,label\na,x\nb,y\n"), "--shares", "0.8,0.1,0.1"
        ),
        ("2 different rows are too few",),
    ),
    "no header, unsaid": Bad(
        labelled("csv", "a film,good", "a plot,bad", "the end,good"),
        ("this looks like a file without a header", "`--no-header`"),
    ),
    "no header of JSON Lines": Bad(
        lambda room: [*room.finetune("--data", room.splits("jsonl", '{"text": "a", "label": "x"}\n')), "--no-header"],
        ("is read as `jsonl`", "`--no-header` is for CSV and TSV"),
    ),
    "quotes of another kind": Bad(lambda room: room.finetune("--quoting", "single"), ("`single`", "csv"), 2),
    "labels of another task": Bad(
        on("sst2", "tsv", "sentence\tlabel", "a film\ta", "a plot\tb"),
        ("train.tsv` line 2: label `a`", "labels of task `sst2`", "`--task classification`"),
    ),
    "a label that the mapping does not name": Bad(
        lambda room: room.finetune("--data", tweets(room, "0\n2\n")),
        ("train_labels.txt` line 2: label `2`", "mapping.txt"),
    ),
    "fewer labels than texts": Bad(
        lambda room: room.finetune("--data", tweets(room, "0\n")),
        ("train_text.txt` has 2 lines", "train_labels.txt` has 1"),
    ),
    "a label of zero width": Bad(labelled("tsv", "text\tlabel", "a\t\u200b", "b\tno"), ("line 2", "is empty")),
    "a text of zero width": Bad(labelled("tsv", "text\tlabel", "\u200b\tyes", "b\tno"), ("line 2", "is empty")),
    "a label of 5,000 characters": Bad(
        labelled("tsv", "text\tlabel", f"a\t{'x' * 5_000}", "b\tno"), ("5,000 characters",)
    ),
    "an infinite label": Bad(labelled("jsonl", '{"text": "a", "label": 1e400}'), ("line 1", "`inf`", "no label")),
    "bytes for a label": Bad(stored(lambda: table(text=["a", "b"], label=[b"x", b"y"])), ("line 1", "a bytes")),
    "a number of 400 digits": Bad(on("regression", "jsonl", f'{{"text": "a", "label": {"9" * 400}}}'), ("too large",)),
    "true for a number": Bad(on("regression", "jsonl", '{"text": "a", "label": true}'), ("`True` in column `label`",)),
    "a number with an underscore": Bad(on("regression", "tsv", "text\tlabel", "a\t1_000"), ("`1_000` in column",)),
    "numbers for words": Bad(
        on("tagging", "jsonl", '{"tokens": [1], "tags": ["A"]}'), ("`1` where a word is expected",)
    ),
    "a column of tags that is not there": Bad(
        lambda room: room.finetune(
            "--task", "tagging", "--data", room.splits("conll", "film A\nplot B\n"), "--label-column", 9
        ),
        ("train.conll` line 1 has 2 columns", "`--label-column` is `9`"),
    ),
    "false for a start": Bad(
        on(
            "question-answering",
            "jsonl",
            '{"question": "a", "context": "a film", "answers": {"text": ["a"], "answer_start": [false]}}',
        ),
        ("line 1", "starts `[False]`"),
    ),
    "a text for the questions of SQuAD": Bad(
        on("question-answering", "json", article(context="a film", qas="abc")),
        ("article 1 is not in SQuAD's layout: a part of it is of another kind",),
    ),
}

#: Numbers and texts that no setting takes.
NUMBERS = {
    "a label column that is empty": Bad(
        lambda room: room.finetune("--label-column", ""), ("`--label-column` is ``",), 2
    ),
    "a cache that is empty": Bad(
        lambda room: room.distill("--layers", 1, "--teacher-cache", ""), ("`--teacher-cache` is ``",), 2
    ),
    "matrices that are not UTF-8": Bad(lambda room: room.mask("--matrices", HALVED), ("--matrices", "not UTF-8"), 2),
    "words to keep that are not UTF-8": Bad(
        lambda room: [
            "trim",
            "--model",
            room.base,
            "--corpus",
            room.data,
            "--out",
            room.tmp / "out",
            "--always",
            HALVED,
        ],
        ("`--always`", "not UTF-8"),
        2,
    ),
    "a rate that vanishes": Bad(lambda room: room.finetune("--lr", "1e-320"), ("`--lr` is `1e-320`", "1e-12 to"), 2),
    "a decay without end": Bad(
        lambda room: room.finetune("--weight-decay", "1e30"), ("`--weight-decay` is `1e30`",), 2
    ),
    "a sparsity that vanishes": Bad(
        lambda room: room.mask("--initial-sparsity", "1e-320"), ("`--initial-sparsity` is `1e-320`",), 2
    ),
    "a threshold without end": Bad(lambda room: room.mask("--threshold", "1e300"), ("`--threshold` is `1e300`",), 2),
    "a temperature that vanishes": Bad(
        lambda room: room.quantize("--temperature", "1e-320"), ("`--temperature` is `1e-320`", "0.001 to 1000"), 2
    ),
    "a weight of a term without end": Bad(
        lambda room: room.distill("--layers", 1, "--terms", "relations:1e300"), ("`1e300`", "too large"), 2
    ),
    "epochs of a corpus without end": Bad(
        lambda room: room.distill("--layers", 1, "--epochs", "1e30"), ("`--epochs` is `1e30`",), 2
    ),
    "rates that vanish": Bad(
        lambda room: room.finetune("--lr-grid", "1e-320,1e-310"), ("`--lr-grid`", "no learning rate"), 2
    ),
    "rates that are named alike": Bad(
        lambda room: room.finetune("--lr-grid", "0.001,0.0010000001"), ("`--lr-grid`", "all of them different"), 2
    ),
    "a block of 5,000 digits": Bad(
        lambda room: room.quantize("--distil-layers", "9" * 5_000), ("`--distil-layers` is `999", "…"), 2
    ),
    "thousands of sizes": Bad(
        lambda room: [
            "elastic",
            *room.finetune("--sizes", ",".join(str((each + 1) / 5_000) for each in range(5_000)))[1:],
        ],
        ("there are 5,000 sizes; give 64 at most",),
        2,
    ),
    "sizes beyond the whole": Bad(
        lambda room: ["elastic", *room.finetune("--sizes", "0.5,2")[1:]], ("`--sizes` is 0.5, 2",), 2
    ),
    "a probability that is no number": Bad(
        lambda room: ["elastic", *room.finetune("--probabilities", "nan,1,0,0")[1:]], ("`--probabilities` is `nan",), 2
    ),
    "a relation twice": Bad(lambda room: room.distill("--layers", 1, "--relations", "qq,qq"), ("`qq,qq`", "twice"), 2),
    "a rate for a task that is not there": Bad(
        lambda room: room.distill("--layers", 1, "--finetune-lr", 0.1), ("`--finetune-lr` is 0.1", "`--then-task`"), 2
    ),
    "a cache in a file": Bad(
        lambda room: room.distill("--layers", 1, "--teacher-cache", room.write("file", "mine")),
        ("`--teacher-cache` is", "not a directory; choose another"),
    ),
    "a config that is empty": Bad(lambda room: room.finetune("--config", ""), ("a path is empty",)),
    "a config in UTF-16": Bad(configured("seed: 1\n".encode("utf-16")), ("run.yaml` is text in utf-16", "iconv")),
    "a setting that is misspelt": Bad(configured("bacth_size: 8\n"), ("`bacth_size` (do you mean `batch_size`?)",)),
    "a date for a column": Bad(configured("text_column: 2020-01-01\n"), ("`text_column` is", "in quotes")),
}
