"""Corrupted artifacts whose sums agree, as someone who knows the format would leave them, and what becomes of them.

    python -m tests.artifact.corrupting --count 1000 --seed 0

Every artifact kind is changed in every file: bits flipped, bytes cut, zeroed or made up, fields of JSON replaced,
tensors scaled, dropped, renamed or retyped; files, several at once, and fields are exchanged with those of another
artifact, a tokenizer with one of the same size, and the files beside a sentence encoder with others; then all sums are
made to agree again. Each is opened in every way there is, in a process with 1 GiB beyond what an unharmed one takes and
a time limit. It must be refused by an error of ours, or answer as recorded and as it did before.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

import slimformer
from slimformer.artifact import MaskStorage, Step, fingerprint, merge
from slimformer.artifact.checks import sum_file
from slimformer.artifact.storage.handler import storage_of
from slimformer.artifact.storage.mask_base import PROCESSOR_FILES
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.bank import MaskBank
from slimformer.errors import DataError, SlimformerError
from slimformer.inference.pipeline import open_pipeline
from slimformer.models.sentence import FLAGS, SentenceSettings
from slimformer.sizes import is_elastic, make_plain
from slimformer.sizes.table import read_sizes
from tests.artifact.forging import signed
from tests.test_old_artifacts import ARTIFACTS, inputs_of, names, outputs_of, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MANIFEST = "slimformer.json"
#: What artifacts of earlier versions did not record anything of.
UNRECORDED = PROCESSOR_FILES | {"generation_config.json", "modules.json", "1_Pooling/config.json"}
EMPTY: frozenset[str] = frozenset()
#: Bytes a process may take beyond what it has after opening unharmed artifacts.
MEMORY = 1 << 30
#: Seconds one artifact may take.
LIMIT = 60.0
#: Share of artifacts that get something of another one.
EXCHANGED = 0.3
#: What is asked of a pipeline before and after; one that takes no texts is not asked.
REQUESTS = ("a fine film", "the end was not good")
#: What a field is replaced by.
VALUES = (
    0,
    1,
    -1,
    3,
    7,
    2**31,
    10**7,
    10**12,
    1e9,
    0.5,
    -2.5,
    True,
    False,
    None,
    "",
    "x",
    "../x",
    [],
    [1],
    {},
    {"x": 1},
)


@dataclass(frozen=True)
class Outcome:
    """What became of one corrupted artifact: refused, same, other, raw, killed or slow."""

    verdict: str
    artifact: str
    change: str
    detail: str = ""
    seconds: float = 0.0


def make_shelf(shelf: Path) -> None:
    """Put artifacts of every kind on a shelf: those of earlier versions as they are, and each saved anew."""
    for base in ("base", "base-odd"):
        shutil.copytree(ARTIFACTS / base, shelf / base)
    for name in names():
        shutil.copytree(ARTIFACTS / name, shelf / f"old-{name}")
        loaded = slimformer.load(shelf / f"old-{name}")
        how: dict[str, Any] = {"step": Step(method="finetune"), "task": loaded.manifest.task}
        if loaded.manifest.model.storage == "mask":
            file = MaskFile.read(shelf / f"old-{name}" / "mask.safetensors")
            how |= {"storage": MaskStorage(kept=file.kept), "base": shelf / file.base.name}
        if is_elastic(loaded.model):
            handler = type(storage_of(shelf / f"old-{name}", loaded.manifest))
            how["storage"] = handler(read_sizes(shelf / f"old-{name}"))
            make_plain(loaded.model)
        slimformer.save(shelf / f"new-{name}", loaded.model, processor=loaded.processor, **how)


def corrupt(folder: Path, dice: random.Random, leave: frozenset[str] = EMPTY, others: Sequence[Path] = ()) -> str:
    """Change something in a folder, in none of the files to leave, make the sums agree, and say what it was.

    Args:
        folder: The artifact.
        dice: What decides.
        leave: Names of files that are left alone.
        others: Artifacts of which files and fields are taken.
    """
    if others and dice.random() < EXCHANGED:
        ways_with_others = [_foreign_files, _foreign_field, _same_size_tokenizer, _sidecar]
        what = dice.choice(ways_with_others)(folder, dice.choice(others), dice, leave)
        agree(folder)
        return what
    files = _files(folder)
    name = dice.choice([file for file in files if file not in leave])
    path = folder / name
    ways: list[Callable[[Path, random.Random], str]] = [_flip, _cut, _zero, _noise]
    if path.suffix == ".json":
        ways += [_field] * 6
    if path.suffix == ".safetensors":
        ways += [_mask_tensor if name.startswith("mask") else _tensor] * 6
    if name == MANIFEST:
        return f"{name}: {_manifest_field(folder, dice)}"
    what = dice.choice(ways)(path, dice)
    agree(folder)
    return f"{name}: {what}"


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _foreign_files(folder: Path, other: Path, dice: random.Random, leave: frozenset[str]) -> str:
    """Take some files of another artifact, such as a tokenizer together with the record of how it reads.

    Weights do not come with their probe: with their config too, they are the other artifact, and not a changed one.
    """
    there = [name for name in _files(other) if name not in leave and name != MANIFEST]
    taken = dice.sample(there, min(len(there), dice.choice((1, 2, 3, len(there) - 1))))
    if any(name.endswith(".safetensors") for name in taken):
        taken = [name for name in taken if name != "probe.json"]
    for name in taken:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(other / name, folder / name)
    return f"{', '.join(taken)} of {other.name}"


def _foreign_field(folder: Path, other: Path, dice: random.Random, leave: frozenset[str]) -> str:
    """Take one field of the same file of another artifact, the manifest included."""
    common = [
        name for name in _files(folder) if name.endswith(".json") and name not in leave and (other / name).is_file()
    ]
    name = dice.choice(common)
    content, foreign = json.loads((folder / name).read_bytes()), json.loads((other / name).read_bytes())
    fields = foreign.items() if isinstance(foreign, dict) and isinstance(content, dict) else ()
    keys = [key for key, value in fields if value != content.get(key) and key not in ("sha256", "files")]
    if not keys:
        return "nothing"
    key = dice.choice(sorted(keys))
    content[key] = foreign[key]
    (folder / name).write_bytes(json.dumps(content).encode())
    return f"{name}: `{key}` of {other.name}"


def _same_size_tokenizer(folder: Path, other: Path, dice: random.Random, leave: frozenset[str]) -> str:
    """Exchange two words of a vocabulary."""
    path = folder / "tokenizer.json"
    vocabulary = json.loads(path.read_text())["model"].get("vocab") if path.is_file() else None
    if not isinstance(vocabulary, dict) or path.name in leave:
        return "nothing"
    content = json.loads(path.read_text())
    one, two = dice.sample(sorted(vocabulary), 2)
    content["model"]["vocab"] |= {one: vocabulary[two], two: vocabulary[one]}
    path.write_text(json.dumps(content))
    return f"tokenizer.json: `{one}` and `{two}` exchanged"


def _sidecar(folder: Path, other: Path, dice: random.Random, leave: frozenset[str]) -> str:
    """Pool in another way, or be a sentence encoder where it was none."""
    ways = dice.sample(sorted(FLAGS), dice.choice((1, 2)))
    settings = SentenceSettings(
        tuple(ways),
        normalize=dice.random() < 0.5,
        prompts={"query": "q: "},
        default_prompt=dice.choice((None, "query")),
        max_length=dice.choice((None, 3)),
    )
    if leave and not (folder / "modules.json").is_file():
        return "nothing"  # earlier versions recorded nothing of this
    settings.write(folder, dice.choice((8, 16, 32)))
    return f"sentence settings {settings}"


def agree(folder: Path) -> None:
    """Make all sums of a manifest those of the files as they are, and the fingerprint where it can be computed."""
    content = json.loads((folder / MANIFEST).read_bytes())
    content.pop("sha256", None)
    content["files"] = {
        path.relative_to(folder).as_posix(): sum_file(path).model_dump()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    with contextlib.suppress(Exception):  # what cannot be read keeps the one it had
        content["model"]["fingerprint"] = fingerprint(folder)
    (folder / MANIFEST).write_bytes(signed(content))


def _flip(path: Path, dice: random.Random) -> str:
    data = bytearray(path.read_bytes())
    count = dice.choice((1, 1, 2, 8, 64))
    for _ in range(count):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return f"{count} bits flipped"


def _cut(path: Path, dice: random.Random) -> str:
    data = path.read_bytes()
    kept = dice.choice((0, 1, len(data) // 2, len(data) - 1, dice.randrange(len(data))))
    path.write_bytes(data[:kept])
    return f"cut to {kept} bytes"


def _zero(path: Path, dice: random.Random) -> str:
    return _overwrite(path, dice, lambda count: bytes(count))


def _noise(path: Path, dice: random.Random) -> str:
    return _overwrite(path, dice, dice.randbytes)


def _overwrite(path: Path, dice: random.Random, make: Callable[[int], bytes]) -> str:
    data = bytearray(path.read_bytes())
    start, count = dice.randrange(len(data)), dice.choice((1, 4, 16, 256))
    data[start : start + count] = make(len(data[start : start + count]))
    path.write_bytes(data)
    return f"{count} bytes at {start} made {'zero' if make(8) == bytes(8) else 'up'}"


def _field(path: Path, dice: random.Random) -> str:
    content = json.loads(path.read_bytes())
    what = _replace(content, dice)
    path.write_text(json.dumps(content), encoding="utf-8")
    return what


def _replace(content: Any, dice: random.Random) -> str:
    places = list(_places(content))
    if not places:
        return "nothing"
    # One branch of a large file, such as a vocabulary, must not drown the settings.
    depth = dice.choice(sorted({len(place) for place in places}))
    *way, last = dice.choice([place for place in places if len(place) == depth])
    holder = content
    for step in way:
        holder = holder[step]
    before = holder[last]
    if dice.random() < 0.15:
        del holder[last]
        return f"{[*way, last]} removed"
    number = isinstance(before, int | float) and not isinstance(before, bool)
    choices = [*VALUES, *([before + 1, before * 2, -before] * 3 if number else [])]
    holder[last] = dice.choice(choices)
    return f"{[*way, last]} from {str(before)[:40]} to {str(holder[last])[:40]}"


def _places(content: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*way, key)
        yield from _places(value, (*way, key))


def _manifest_field(folder: Path, dice: random.Random) -> str:
    content = json.loads((folder / MANIFEST).read_bytes())
    content.pop("sha256", None)
    what = _replace(content, dice)
    try:
        (folder / MANIFEST).write_bytes(signed(content))
    except SlimformerError:
        (folder / MANIFEST).write_text(json.dumps(content))
    return what


def _tensor(path: Path, dice: random.Random) -> str:
    tensors = load_file(path)
    what = _change_tensor(tensors, dice)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    return what


def _mask_tensor(path: Path, dice: random.Random) -> str:
    """Change a tensor of a mask file, whose own sum is made to agree too."""
    file = MaskFile.read(path)
    part = dice.choice([part for part in ("bits", "whole") if getattr(file, part)])
    tensors = dict(getattr(file, part))
    what = _change_tensor(tensors, dice)
    try:
        MaskFile(**{**vars(file), part: tensors}).write(path)
    except Exception as error:  # not even the writer takes it
        return f"{what}, which cannot be written ({type(error).__name__})"
    return what


def _change_tensor(tensors: dict[str, torch.Tensor], dice: random.Random) -> str:
    name = dice.choice(sorted(tensors))
    tensor = tensors[name]
    kind = dice.choice(("scale", "one value", "drop", "rename", "double", "half", "reshape", "zero"))
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    if kind == "scale":
        tensors[name] = (tensor * 1.5).to(tensor.dtype)
    elif kind == "one value":
        flat = tensor.clone().flatten()
        place = int(torch.randint(flat.numel(), (1,), generator=generator))
        value = dice.choice((float("nan"), float("inf"), 1e30, 3.0))
        flat[place] = value if flat.is_floating_point() else int(dice.randrange(255))
        tensors[name] = flat.view(tensor.shape)
    elif kind == "drop":
        del tensors[name]
    elif kind == "rename":
        tensors[f"{name}.x"] = tensors.pop(name)
    elif kind == "reshape":
        tensors[name] = tensor.reshape(-1)[: max(1, tensor.numel() // 2)].clone()
    elif kind == "zero":
        tensors[name] = torch.zeros_like(tensor)
    else:
        tensors[name] = tensor.to(torch.float64 if kind == "double" else torch.float16)
    return f"{kind} of `{name}`"


def ways_to_open(folder: Path) -> dict[str, Callable[[Path], Any]]:
    """Every way of opening an artifact; a mask goes into a bank and is merged too."""
    ways: dict[str, Callable[[Path], Any]] = {"verify": slimformer.verify, "load": slimformer.load}
    if (folder / "mask.safetensors").is_file():
        ways |= {"bank": in_bank, "merge": merged}
    return ways


def in_bank(folder: Path) -> MaskBank:
    """A bank with a mask as its only task."""
    bank = MaskBank()
    bank.add("task", folder)
    return bank


def merged(folder: Path) -> None:
    """Merge a mask into a folder that is removed again."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        merge(folder, Path(scratch) / "plain")


def judge(name: str, folder: Path, change: str, before: Any = None) -> Outcome:
    """Open a corrupted artifact in every way and compare its answers with those recorded, and with those before."""
    start = time.monotonic()
    verdicts: dict[str, str] = {}
    opened: dict[str, Any] = {}
    message = ""
    for way, opens in ways_to_open(folder).items():
        try:
            opened[way] = opens(folder)
            verdicts[way] = "accepted"
        except SlimformerError as error:
            verdicts[way] = "refused"
            message = str(error)
        except BaseException as error:  # MemoryError included
            return Outcome("raw", name, change, f"{way}: {type(error).__name__}: {error}"[:300])
    taken = time.monotonic() - start
    if len(set(verdicts.values())) > 1:
        return Outcome("disagree", name, change, f"{verdicts}: {message}"[:300], taken)
    if "load" not in opened:
        return Outcome("refused", name, change, message[:200], taken)
    return Outcome(*_compare(name, opened["load"], change, before, folder), taken)


def answers_of(folder: Path) -> Any:
    """What a pipeline, and for a mask a bank, says to some requests; why it says nothing, where it takes no texts."""
    try:
        answers = [open_pipeline(folder)(list(REQUESTS))]
        if (folder / "mask.safetensors").is_file():
            answers.append(in_bank(folder).predict({"task": list(REQUESTS)})["task"])
        return answers
    except DataError:
        return "takes no texts"
    except SlimformerError as error:
        return str(error).replace(str(folder), "")


def _compare(name: str, loaded: Any, change: str, before: Any, folder: Path) -> tuple[str, str, str, str]:
    record = recorded(name.partition("-")[2])
    try:
        outputs = outputs_of(loaded.model, inputs_of(loaded.processor, record["request"]))
        for key, values in record["outputs"].items():
            expected = torch.tensor(values, dtype=outputs[key].dtype)
            torch.testing.assert_close(outputs[key], expected.view_as(outputs[key]), rtol=1e-3, atol=1e-4)
    except Exception as error:
        return "other", name, change, f"{type(error).__name__}: {error}"[:300]
    if before is not None:
        try:
            after = answers_of(folder)
        except Exception as error:
            return "raw", name, change, f"predict: {type(error).__name__}: {error}"[:300]
        if not isinstance(after, str) and not alike(before, after):
            return "other", name, change, f"predict: {before} became {after}"[:300]
    return "same", name, change, ""


def alike(before: Any, after: Any) -> bool:
    """Whether two answers are the same, numbers nearly."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(alike(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(alike, before, after))
    if isinstance(before, float) and isinstance(after, float):
        return abs(before - after) <= 1e-3 * max(abs(before), 1)
    return bool(before == after)


def _serve(connection: Any, shelf: Path, seed: int, kinds: list[str]) -> None:
    """Corrupt and judge the numbers that come in, each by its own dice; memory is bounded once all is imported."""
    torch.set_num_threads(1)
    answers = {name: answers_of(_copy(shelf, name)) for name in kinds}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while (number := connection.recv()) is not None:
        name = kinds[number % len(kinds)]
        folder = _copy(shelf, name)
        # Earlier versions recorded nothing of how inputs are read.
        old = name.startswith("old")
        others = [shelf / kind for kind in kinds if kind != name and kind.startswith("old") == old]
        change = corrupt(folder, random.Random(f"{seed} {number}"), UNRECORDED if old else EMPTY, others)
        connection.send(("begun", name, change))
        outcome = judge(name, folder, change, None if old else answers[name])
        connection.send(("done", outcome, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def _copy(shelf: Path, name: str) -> Path:
    shutil.rmtree(shelf / "copy", ignore_errors=True)
    return Path(shutil.copytree(shelf / name, shelf / "copy"))


def attack(count: int, seed: int = 0, limit: float = LIMIT) -> tuple[list[Outcome], int]:
    """Corrupt `count` artifacts and open them in another process; outcomes, and kilobytes by which that grew."""
    with tempfile.TemporaryDirectory(prefix="slimformer-corrupt-") as scratch:
        make_shelf(Path(scratch))
        return _attack(Path(scratch), count, seed, limit)


def _attack(shelf: Path, count: int, seed: int, limit: float) -> tuple[list[Outcome], int]:
    context = multiprocessing.get_context("spawn")
    kinds = sorted(path.name for path in shelf.iterdir() if (path / MANIFEST).is_file())
    outcomes: list[Outcome] = []
    grown = 0
    process: Any = None
    connection: Any = None
    for number in range(count):
        if process is None:
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, shelf, seed, kinds), daemon=True)
            process.start()
            other.close()
        outcome, more = _next(connection, number, limit)
        outcomes.append(outcome)
        grown = max(grown, more)
        if outcome.verdict in ("slow", "killed"):
            process.kill()
            process.join()
            process = None
    if process is not None:
        connection.send(None)
        process.join()
    return outcomes, grown


def _next(connection: Any, number: int, limit: float) -> tuple[Outcome, int]:
    """What becomes of one corrupted artifact in the other process, and kilobytes that grew by."""
    name = change = "?"
    try:
        connection.send(number)
        while connection.poll(limit if name != "?" else 10 * limit):  # the first waits for the imports
            message = connection.recv()
            if message[0] == "done":
                return message[1], message[2]
            _, name, change = message
    except (EOFError, OSError) as error:
        return Outcome("killed", name, change, repr(error)), 0
    return Outcome("slow", name, change, f"more than {limit} s"), 0


#: What must not happen: other answers, an error that is not ours, a crash, a hang, or `load` and `verify` apart.
BAD = ("other", "raw", "killed", "slow", "disagree")


def main() -> None:
    """Attack as many artifacts as asked for and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes, grown = attack(options.count, options.seed)
    bad = [asdict(outcome) for outcome in outcomes if outcome.verdict in BAD]
    counts = collections.Counter(outcome.verdict for outcome in outcomes)
    slowest = max(outcome.seconds for outcome in outcomes)
    result = {"counts": counts, "grown_mib": grown / 1024, "slowest_s": slowest, "bad": bad}
    sys.stdout.write(f"{json.dumps(result, indent=2)}\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
