"""What careless and hostile users give to commands: rows of the table in `test_bad_input_table.py`."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = "text\tlabel\nthe film was good\tyes\na dull plot\tno\n"
#: What a label or a path may hold to rename a window, clear a screen or reverse the text behind it.
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@dataclass(frozen=True)
class Room:
    """What a row may use: a base, data and an artifact, none of which it changes, and a folder of its own."""

    base: Path
    data: Path
    artifact: Path
    viewer: Path
    tmp: Path

    def write(self, name: str, content: str | bytes) -> Path:
        """A file in the row's own folder."""
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return path

    def splits(self, ending: str, train: str | bytes, dev: str | bytes | None = None) -> Path:
        """A folder with a train and a dev split."""
        self.write(f"mine/train.{ending}", train)
        self.write(f"mine/dev.{ending}", train if dev is None else dev)
        return self.tmp / "mine"

    def changed(self, **settings: object) -> Path:
        """The base with another config."""
        folder = Path(shutil.copytree(self.base, self.tmp / "changed"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **settings}))
        return folder

    def broken(self, value: float) -> Path:
        """The base with one weight that is no number, in its last block."""
        from safetensors.torch import load_file, save_file

        folder = self.changed()
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.1.output.dense.weight"][3, 5] = value
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    def indexed(self, index: object) -> Path:
        """The base with its weights in a file that an index names."""
        folder = self.changed()
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    def finetune(self, *more: object) -> list[object]:
        """A run that is in order but for `more`."""
        flags = {"--model": self.base, "--task": "classification", "--data": self.data, "--out": self.tmp / "out"}
        flags |= {"--max-steps": 2, "--batch-size": 8}
        flags |= dict(zip(more[::2], more[1::2], strict=True))
        return ["finetune", "--quiet", *(part for item in flags.items() for part in item)]

    def distill(self, *more: object) -> list[object]:
        """The same for a student."""
        flags = {"--teacher": self.base, "--corpus": self.data / "train.tsv", "--text-column": "text"}
        flags |= {"--out": self.tmp / "out", "--max-steps": 2, "--batch-size": 8}
        flags |= dict(zip(more[::2], more[1::2], strict=True))
        return ["distill", "--quiet", *(part for item in flags.items() for part in item)]

    def mask(self, *more: object) -> list[object]:
        """The same for a mask."""
        return ["mask", *self.finetune(*more)[1:]]

    def quantize(self, *more: object) -> list[object]:
        """The same for a quantized model."""
        return ["quantize", *self.finetune(*more)[1:]]

    def post_training(self, *more: object) -> list[object]:
        """The same for one that is quantized without labels."""
        flags = ["--model", self.base, "--corpus", self.data / "train.tsv", "--text-column", "text"]
        return ["quantize", "--quiet", "--post-training", *flags, "--out", self.tmp / "out", *more]

    def images(self) -> list[object]:
        """A run on the images in the row's own folder."""
        return self.finetune("--model", self.viewer, "--task", "image-classification", "--data", self.tmp / "mine")


@dataclass(frozen=True)
class Bad:
    """A row: what is run, what the one line says, and the exit code."""

    command: Callable[[Room], list[object]]
    words: tuple[str, ...]
    code: int = 1


def png(width: int = 8, height: int = 8) -> bytes:
    """A picture whose header promises this size."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "png")
    content = bytearray(stream.getvalue())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def picture_folders(room: Room, bad: Callable[[Path], object]) -> list[object]:
    """Folders of pictures for both splits, and what `bad` makes among them."""
    for split in ("train", "dev"):
        for label in ("cat", "dog"):
            room.write(f"mine/{split}/{label}/1.png", png())
    bad(room.tmp / "mine" / "train" / "cat" / "2.png")
    return room.images()


def zipped_pictures(room: Room, damage: Callable[[bytes], bytes]) -> list[object]:
    """The same as a zip file with something changed in it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for split in ("train", "dev"):
            for label in ("cat", "dog"):
                packed.writestr(f"{split}/{label}/1.png", png())
    room.write("mine/pictures.zip", damage(stream.getvalue()))
    return room.images()


def wrong_sum(content: bytes) -> bytes:
    """A zip file in which a byte of a picture has changed."""
    place = content.index(b"IDAT") + 6
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def laughs(levels: int) -> str:
    """YAML of a few lines that stands for 9 ** levels words."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"batch_size: *a{levels - 1}", ""])


def configured(content: str | bytes) -> Callable[[Room], list[object]]:
    """A run with this config file."""
    return lambda room: room.finetune("--config", room.write("run.yaml", content))


def labelled(ending: str, *lines: str) -> Callable[[Room], list[object]]:
    """A run on data of these lines."""
    return lambda room: room.finetune("--data", room.splits(ending, "\n".join([*lines, ""])))


def asked(ending: str, content: str | bytes) -> Callable[[Room], list[object]]:
    """A question to an artifact from a file."""
    return lambda room: ["predict", room.artifact, "--file", room.write(f"asked.{ending}", content)]


def without(flag: str, command: list[object]) -> list[object]:
    """A command without a flag and its value."""
    place = command.index(flag)
    return [*command[:place], *command[place + 2 :]]


def pipe(path: Path) -> Path:
    """A pipe that nobody writes to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


DEEP = "[" * 100_000 + "]" * 100_000
LONG_NUMBER = "9" * 5_000
HALF = '{"text": "half \\ud800 of it", "label": "yes"}'
WHOLE = '{"text": "a dull plot", "label": "no"}'

#: Hangs, memory and raw errors.
LIMITS = {
    "a pipe among the images": Bad(
        lambda room: picture_folders(room, pipe), ("train/cat/2.png", "is a pipe", "replace or remove it")
    ),
    "a folder among the images": Bad(lambda room: picture_folders(room, os.mkdir), ("2.png", "is a folder")),
    "a pipe for data": Bad(lambda room: room.finetune("--data", pipe(room.tmp / "train.tsv")), ("is a pipe",)),
    "a pipe for a config": Bad(lambda room: room.finetune("--config", pipe(room.tmp / "run.yaml")), ("is a pipe",)),
    "a pipe for requests": Bad(
        lambda room: ["predict", room.artifact, "--file", pipe(room.tmp / "asked.txt")], ("is a pipe", "`-`")
    ),
    "a device for requests": Bad(lambda room: ["predict", room.artifact, "--file", "/dev/zero"], ("is a device",)),
    "an image that unpacks to gigabytes": Bad(
        lambda room: picture_folders(room, lambda path: path.write_bytes(png(30_000, 30_000))),
        ("2.png", "900,000,000 pixels"),
    ),
    "an image a little too large": Bad(
        lambda room: picture_folders(room, lambda path: path.write_bytes(png(10_000, 10_000))),
        ("2.png", "100,000,000 pixels"),
    ),
    "a zip with a wrong sum": Bad(lambda room: zipped_pictures(room, wrong_sum), ("train/cat/1.png", "Bad CRC-32")),
    "a zip that is cut": Bad(lambda room: zipped_pictures(room, lambda all: all[:-40]), ("pictures.zip",)),
    "a way of keeping close that is none": Bad(
        lambda room: room.finetune("--keep-close", "mras"), ("`--keep-close` is `mras`", "do you mean `mars`?"), 2
    ),
    "noise for numbers": Bad(
        lambda room: room.finetune("--keep-close", "r3f", "--task", "regression"), ("`r3f:1`", "kind `regression`")
    ),
    "a radius of nothing": Bad(
        lambda room: room.finetune("--keep-close", "mars[0]"), ("`radius` is `0`", "greater than 0"), 2
    ),
    "blocks without end": Bad(lambda room: room.mask("--blocks", "0-99999999999"), ("`--blocks`", "0-99999999999"), 2),
    "blocks of many digits": Bad(lambda room: room.mask("--blocks", "9" * 5_000), ("`--blocks`",), 2),
    "thousands of threads": Bad(lambda room: room.finetune("--threads", 3_000), ("`--threads` is `3000`", "cores"), 2),
    "thousands of threads to bench": Bad(
        lambda room: ["bench", room.base, "--threads", 3_000], ("`--threads` is `3000`", "cores"), 2
    ),
    "a seed of 33 bits": Bad(
        lambda room: room.finetune("--seed", 2**32), ("`--seed` is `4294967296`", "4294967295"), 2
    ),
    "epochs without end": Bad(lambda room: room.finetune("--epochs", "1e308"), ("`--epochs` is `1e308`", "less"), 2),
    "a batch of 2**63": Bad(lambda room: room.finetune("--batch-size", 2**63), ("`--batch-size` is", "less"), 2),
    "steps of 2**63": Bad(lambda room: room.finetune("--max-steps", 2**63), ("`--max-steps` is", "less"), 2),
    "rows of 2**64": Bad(lambda room: room.finetune("--limit", 2**64), ("`--limit` is", "less"), 2),
    "a batch of 2**63 to predict": Bad(
        lambda room: ["predict", room.artifact, "a film", "--batch-size", 2**63], ("`--batch-size` is",), 2
    ),
    "a batch of 2**63 to evaluate": Bad(
        lambda room: ["evaluate", room.artifact, "--data", room.data, "--batch-size", 2**63], ("`--batch-size` is",), 2
    ),
    "a batch of 2**63 to bench": Bad(lambda room: ["bench", room.base, "--batch", 2**63], ("`--batch` is",), 2),
    "a draft of what writes nothing": Bad(
        lambda room: ["predict", room.artifact, "a film", "--draft", "S"], ("`--draft` is `S`", "generates no text")
    ),
    "a number of 5,000 digits": Bad(lambda room: room.finetune("--batch-size", LONG_NUMBER), ("--batch-size",), 2),
    "aliases that grow": Bad(configured(laughs(12)), ("run.yaml`", "aliases"), 1),
    "aliases of merged mappings": Bad(
        configured("a: &a {x: 1}\nb: &b\n  <<: [*a, *a]\nc: &c\n  <<: [*b, *b]\nbatch_size: *c\n"),
        ("run.yaml`",),
    ),
    "an alias of itself": Bad(configured("batch_size: &a [*a]\n"), ("run.yaml`", "alias")),
    "deep YAML": Bad(configured(f"batch_size: {DEEP}\n"), ("run.yaml`", "nested too deeply")),
    "a number of 5,000 digits in YAML": Bad(configured(f"batch_size: {LONG_NUMBER}\n"), ("run.yaml`", "digits")),
    "half a character in YAML": Bad(configured('task: "\\ud800"\n'), ("run.yaml`", "half of a character")),
    "a date that is none in YAML": Bad(configured("task: 2001-99-99\n"), ("run.yaml`",)),
    "a value of a megabyte in YAML": Bad(configured(f"batch_size: {'x' * 900_000}\n"), ("`batch_size` is `xxx", "…")),
    "YAML of many megabytes": Bad(configured("# comment\n" * 500_000), ("run.yaml`", "bytes")),
    "deep JSON": Bad(
        labelled("jsonl", HALF.replace("half \\ud800 of it", "a"), f'{{"text": {DEEP}}}'),
        ("line 2", "nested too deeply"),
    ),
    "deep JSON in an array": Bad(labelled("json", f'[{WHOLE}, {{"text": {DEEP}}}]'), ("nested too deeply",)),
    "a number of 5,000 digits in JSON": Bad(
        labelled("jsonl", WHOLE, f'{{"text": "a", "label": {LONG_NUMBER}}}'), ("line 2", "digits")
    ),
    "half a character in JSON": Bad(labelled("jsonl", WHOLE, HALF), ("line 2", "half of a character", "\\ud800")),
    "half a character in a key": Bad(
        labelled("jsonl", WHOLE.replace("label", "\\udfff")), ("line 1", "half of a character")
    ),
    "deep SQuAD": Bad(
        lambda room: room.finetune(
            "--task", "question-answering", "--data", room.splits("json", f'{{"data": {DEEP}}}')
        ),
        ("train.json", "nested too deeply"),
    ),
    "deep JSON in requests": Bad(asked("jsonl", f'{{"text": {DEEP}}}\n'), ("nested too deeply",)),
    "~nouser for a model": Bad(lambda room: room.finetune("--model", "~nouser/model"), ("`~nouser/model`", "home")),
    "~nouser for data": Bad(lambda room: room.finetune("--data", "~nouser/data"), ("`~nouser/data`", "home")),
    "~nouser for a result": Bad(lambda room: room.finetune("--out", "~nouser/out"), ("`~nouser/out`", "home")),
    "~nouser for an artifact": Bad(lambda room: ["verify", "~nouser/art"], ("`~nouser/art`", "home")),
    "~nouser for requests": Bad(lambda room: ["predict", room.artifact, "--file", "~nouser/asked"], ("home",)),
    "a tokenizer that llama.cpp has not": Bad(
        lambda room: ["export", room.base, "--out", room.tmp / "m.gguf"], ("`WordLevel`", "llama.cpp has BPE")
    ),
    "~nouser for an export": Bad(lambda room: ["export", room.base, "--out", "~nouser/m.onnx"], ("home",)),
    "~nouser for a merge": Bad(lambda room: ["merge", "~nouser/mask", "--out", room.tmp / "out"], ("home",)),
    "~nouser for an unpacking": Bad(lambda room: ["unpack", "~nouser/packed", "--out", room.tmp / "out"], ("home",)),
    "nothing to unpack": Bad(
        lambda room: ["unpack", room.artifact, "--out", room.tmp / "out"], ("is not packed", "`plain`", "already")
    ),
    "a type that weights are not stored in": Bad(lambda room: room.finetune("--store", "int8"), ("--store", "int8"), 2),
    "5,000 characters for a model": Bad(lambda room: ["inspect", "x" * 5_000], ("file name too long",)),
    "5,000 characters for data": Bad(lambda room: room.finetune("--data", "x" * 5_000), ("file name too long",)),
    "5,000 characters for a result": Bad(lambda room: room.finetune("--out", "x" * 5_000), ("file name too long",)),
    "5,000 characters for an artifact": Bad(lambda room: ["verify", "x/" * 2_500], ("file name too long",)),
    "5,000 characters for a task": Bad(lambda room: room.finetune("--task", "x" * 5_000), ("task `xxx", "…")),
    "5,000 characters for a config": Bad(lambda room: room.finetune("--config", "x" * 5_000), ("file name too long",)),
    "5,000 characters for an export": Bad(
        lambda room: ["export", room.base, "--out", "x" * 5_000], ("file name too long",)
    ),
    "5,000 characters for a column": Bad(lambda room: room.finetune("--text-column", "x" * 5_000), ("`xxx", "…")),
}

#: Escape sequences wherever a name is repeated to the user.
SEQUENCES = {
    "in a model": Bad(lambda room: ["inspect", f"./{ESCAPES}"], ("\\x1b]0;owned", "\\u202e")),
    "in a task": Bad(lambda room: room.finetune("--task", ESCAPES), ("\\x1b]0;owned",)),
    "in a column": Bad(lambda room: room.finetune("--text-column", ESCAPES), ("\\x1b]0;owned",)),
    "in an unknown flag": Bad(lambda room: ["inspect", room.base, f"--{ESCAPES}"], ("\\x1b]0;owned",), 2),
    "in a value": Bad(lambda room: room.finetune("--batch-size", ESCAPES), ("\\x1b]0;owned",), 2),
    "in a path of data": Bad(
        lambda room: room.finetune("--data", room.write(f"{ESCAPES}.tsv", b"\xff")), ("\\x1b]0;owned",)
    ),
    "in a header": Bad(
        lambda room: room.finetune("--data", room.splits("tsv", f"{ESCAPES}\tb\tc\n1\t2\t3\n")), ("\\x1b]0;owned",)
    ),
    "in a label": Bad(
        lambda room: room.finetune("--data", room.splits("tsv", GOOD, f"{GOOD}a film\t{ESCAPES}\n")), ("\\x1b]0;owned",)
    ),
    "in a YAML key": Bad(configured(json.dumps({ESCAPES: 1})), ("\\x1b]0;owned",)),
    "in a YAML value": Bad(configured(json.dumps({"batch_size": ESCAPES})), ("\\x1b]0;owned",)),
}

#: Found by trying what else there is to get wrong.
OTHERS = {
    "architectures that are no names": Bad(lambda room: ["inspect", room.changed(architectures=[1])], ("`[1]`",)),
    "architectures that are no list": Bad(lambda room: ["inspect", room.changed(architectures="B")], ("`B`",)),
    "100,000 columns": Bad(
        labelled("tsv", "\t".join(f"c{number}" for number in range(100_000)), "\t".join("1" * 100_000)),
        ("does not tell which column holds the label", "…"),
    ),
    "labels that are objects": Bad(labelled("jsonl", '{"text": "a", "label": {"x": 1}}'), ("{'x': 1}", "a dict")),
    "one column for text and label": Bad(
        lambda room: room.finetune("--text-column", "label", "--label-column", "label"), ("text and label at once",)
    ),
    "events where nothing can be written": Bad(
        lambda room: room.finetune("--tensorboard", "/proc/events"), ("`--tensorboard` is `/proc/events`",)
    ),
    "a demo in a file": Bad(lambda room: ["demo", "--out", room.write("file", "mine")], ("cannot be written",)),
    "a demo where nothing can be written": Bad(lambda room: ["demo", "--out", "/proc/demo"], ("cannot be written",)),
    "a demo among files of the user": Bad(
        lambda room: ["demo", "--out", room.write("mine/letter.txt", "dear").parent], ("`letter.txt`", "no demo made")
    ),
    "a demo in an artifact": Bad(lambda room: ["demo", "--out", room.artifact], ("no demo made",)),
    "a demo below an artifact": Bad(lambda room: ["demo", "--out", room.artifact / "demo"], ("lies in the artifact",)),
    "a demo without a place": Bad(lambda room: ["demo", "--out", ""], ("`--out` is ``", "names no folder")),
    "a batch that fits into no memory": Bad(
        lambda room: ["bench", room.base, "--batch", "2000000000", "--length", "64"], ("more memory than there is",)
    ),
    "a push to what is no name": Bad(lambda room: ["push", room.artifact, "a/b/c"], ("`a/b/c` is no name",), 2),
    "a push to a revision": Bad(
        lambda room: ["push", room.artifact, "me/mine@main"], ("names a revision", "`--revision`"), 2
    ),
    "a push to what no branch is called": Bad(
        lambda room: ["push", room.artifact, "me/mine", "--revision", "a b"], ("`--revision` is `a b`",), 2
    ),
    "a push of what is no artifact": Bad(lambda room: ["push", room.base, "me/mine"], ("has no slimformer.json",)),
    "a run to be pushed to what is no name": Bad(
        lambda room: room.finetune("--push-to-hub", "a/b/c"), ("`a/b/c` is no name",), 2
    ),
    "a run to be pushed to a folder": Bad(
        lambda room: room.finetune("--push-to-hub", room.tmp), ("is no name of the Hub", "give `owner/name`"), 2
    ),
    "a model of the Hub in offline mode": Bad(
        lambda room: ["predict", "nobody/nothing@v1", "a text"],
        (
            "`nobody/nothing@v1` is no folder here and could not be fetched from the Hub in offline mode",
            "HF_HUB_OFFLINE",
        ),
    ),
    "a model of no possible name": Bad(lambda room: room.finetune("--model", "no body"), ("no name of the Hub",)),
    "a dry run where something lies": Bad(
        lambda room: [*room.finetune("--out", room.write("mine/letter.txt", "dear").parent), "--dry-run"],
        ("is no artifact, so it is not replaced",),
    ),
    "no data": Bad(lambda room: room.finetune("--data", ""), ("`--data` is ``", "give a value"), 2),
    "no corpus": Bad(
        lambda room: room.distill("--layers", 1, "--corpus", "", "--text-column", "text"), ("`--corpus` is ``",), 2
    ),
    "no model": Bad(lambda room: room.finetune("--model", ""), ("`--model` is ``", "give a value"), 2),
    "no artifact": Bad(lambda room: ["verify", ""], ("a path is empty",)),
    "no requests": Bad(lambda room: ["predict", room.artifact, "--file", ""], ("a path is empty",)),
    "no export": Bad(lambda room: ["export", room.base, "--out", ""], ("a path is empty",)),
    "no place for a result": Bad(lambda room: room.finetune("--out", ""), ("`--out` is ``", "give a value"), 2),
    "a bench without end": Bad(
        lambda room: ["bench", room.base, "--seconds", "1e300"], ("`--seconds` is `1e+300`",), 2
    ),
    "a bench of less than no time": Bad(
        lambda room: ["bench", room.base, "--seconds=-1"], ("`--seconds` is `-1.0`",), 2
    ),
    "a bench of no number of seconds": Bad(
        lambda room: ["bench", room.base, "--seconds", "nan"], ("`--seconds` is `nan`",), 2
    ),
    "a name that is not UTF-8": Bad(lambda room: room.finetune("--data", "caf\udce9"), ("caf\\udce9", "not UTF-8"), 2),
}

#: What a gzip file may be.
PACKED = {
    "cut short": Bad(
        lambda room: room.finetune("--data", room.splits("tsv.gz", gzip.compress(GOOD.encode())[:-12])), ("gzip",)
    ),
    "no gzip file": Bad(lambda room: room.finetune("--data", room.splits("tsv.gz", GOOD)), ("gzip",)),
}
