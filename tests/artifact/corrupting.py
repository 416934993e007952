"""Corrupted artifacts whose sums agree, as someone who knows the format would leave them, and what becomes of them.

    python -m tests.artifact.corrupting --count 1000 --seed 0

Every artifact kind is changed in every file: bits flipped, bytes cut, zeroed or made up, fields of JSON replaced,
tensors scaled, dropped, renamed or retyped; then all sums are made to agree again. Each is opened in a process with
1 GiB beyond what an unharmed one takes and a time limit. It must be refused by an error of ours, or answer as recorded.
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
from slimformer.artifact import MaskStorage, Step, fingerprint
from slimformer.artifact.checks import sum_file
from slimformer.artifact.storage.mask_base import PROCESSOR_FILES
from slimformer.artifact.storage.mask_file import MaskFile
from slimformer.errors import SlimformerError
from tests.artifact.forging import signed
from tests.test_old_artifacts import ARTIFACTS, inputs_of, names, outputs_of, recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MANIFEST = "slimformer.json"
EMPTY: frozenset[str] = frozenset()
#: Bytes a process may take beyond what it has after opening unharmed artifacts.
MEMORY = 1 << 30
#: Seconds one artifact may take.
LIMIT = 60.0
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
        slimformer.save(shelf / f"new-{name}", loaded.model, processor=loaded.processor, **how)


def corrupt(folder: Path, dice: random.Random, leave: frozenset[str] = EMPTY) -> str:
    """Change something in a folder, in none of the files to leave, make the sums agree, and say what it was."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
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


def judge(name: str, folder: Path, change: str) -> Outcome:
    """Open a corrupted artifact by both ways and compare its answers with those recorded."""
    start = time.monotonic()
    verdicts = []
    for way in (slimformer.verify, slimformer.load):
        try:
            loaded = way(folder)
            verdicts.append("accepted")
        except SlimformerError as error:
            verdicts.append("refused")
            message = str(error)
        except BaseException as error:  # MemoryError included
            return Outcome("raw", name, change, f"{way.__name__}: {type(error).__name__}: {error}"[:300])
    taken = time.monotonic() - start
    if len(set(verdicts)) > 1:
        return Outcome("disagree", name, change, f"{verdicts}: {message}"[:300], taken)
    if verdicts[0] == "refused":
        return Outcome("refused", name, change, message[:200], taken)
    return Outcome(*_compare(name, loaded, change), taken)


def _compare(name: str, loaded: Any, change: str) -> tuple[str, str, str, str]:
    record = recorded(name.partition("-")[2])
    try:
        outputs = outputs_of(loaded.model, inputs_of(loaded.processor, record["request"]))
        for key, values in record["outputs"].items():
            expected = torch.tensor(values, dtype=outputs[key].dtype)
            torch.testing.assert_close(outputs[key], expected.view_as(outputs[key]), rtol=1e-3, atol=1e-4)
    except Exception as error:
        return "other", name, change, f"{type(error).__name__}: {error}"[:300]
    return "same", name, change, ""


def _serve(connection: Any, shelf: Path, seed: int, kinds: list[str]) -> None:
    """Corrupt and judge the numbers that come in, each by its own dice; memory is bounded once all is imported."""
    torch.set_num_threads(1)
    for name in kinds:
        slimformer.load(_copy(shelf, name))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while (number := connection.recv()) is not None:
        name = kinds[number % len(kinds)]
        folder = _copy(shelf, name)
        # Earlier versions recorded nothing of how inputs are read.
        change = corrupt(
            folder, random.Random(f"{seed} {number}"), PROCESSOR_FILES if name.startswith("old") else EMPTY
        )
        connection.send(("begun", name, change))
        outcome = judge(name, folder, change)
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
