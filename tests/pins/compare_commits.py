"""Train with two commits on this machine and compare what they wrote, bit by bit.

    python -m tests.pins.compare_commits OLD [NEW] [--only PART]

The pins beside this script (`trajectories.py`) allow for the last bits, which differ between processors. On one and
the same machine nothing may differ, so this runs every pinned case through the command line twice: with the sources of
commit OLD, checked out into a temporary git worktree, and with those of NEW, by default the working tree. Models, data
and the interpreter are the same, seeds are fixed, one thread computes. An editable install of slimformer is set aside;
each side says where its sources lie.

Compared by SHA-256, for each artifact:

- weights: of every tensor in every safetensors file name, type, shape and bytes, and the metadata of the file;
- files: every other file but the card, which tells of the run in words;
- manifest: `slimformer.json` without sums, format, versions, times, command lines, empty values and paths. Settings
  that only one side records (a new one, or one left at its default) are no difference.

Prints a table, and exits with 1 where anything differs or a command fails. `--only quantize/minilm` runs the cases
whose names contain that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.pins import trajectories
from tests.pins.materials import NAMED, Materials

ROOT = Path(__file__).parents[2]
#: Settings of a run that say where things lie.
PATHS = frozenset({*NAMED, "out", "report", "student", "teacher_cache", "tensorboard"})
#: What a manifest says of the machine, the day and the form it is written in.
PASSING = frozenset({"command", "duration_s", "versions", "format", "sha256", "files"})
UNCOMPARED = frozenset({"README.md", "slimformer.json"})
#: Runs commands in one process. A finder of an editable install would win over PYTHONPATH.
LAUNCHER = """
import json, sys
from importlib.machinery import PathFinder
sources = sys.argv[1]

def leads_elsewhere(finder):
    find = getattr(finder, "find_spec", None)
    return finder is not PathFinder and find is not None and find("slimformer", None) is not None

sys.meta_path[:] = [finder for finder in sys.meta_path if not leads_elsewhere(finder)]
import slimformer
if not slimformer.__file__.startswith(sources):
    sys.exit(f"slimformer comes from {slimformer.__file__} and not from {sources}")
from slimformer.cli import main
codes = {}
for name, arguments in json.load(sys.stdin).items():
    try:
        main(arguments)
        codes[name] = 0
    except SystemExit as end:
        codes[name] = end.code or 0
with open("codes.json", "w") as file:
    json.dump(codes, file)
"""


def main() -> None:
    """Run both sides, print the table and exit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", help="another one; by default the working tree")
    parser.add_argument("--only", default="", metavar="PART", help="only the cases whose names contain this")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slimformer-compare-"))).resolve()
        materials = Materials(work / "materials")
        commands = commands_of(materials, chosen.only)
        results = []
        for side, commit in (("old", chosen.old), ("new", chosen.new)):
            sources = ROOT / "src" if commit is None else checked_out(stack, work / f"{side}-tree", commit) / "src"
            results.append(train(work / side, materials.folder, sources, commands))
    rows = {
        name: compared(*(result.get(name, {}) for result in results)) for name in sorted({*results[0], *results[1]})
    }
    sys.stdout.write(table(rows))
    sys.exit(any(verdict != "same" for row in rows.values() for verdict in row.values()))


def commands_of(materials: Materials, part: str = "") -> dict[str, list[str]]:
    """The command lines of the pinned cases, by method and name; paths begin at the folder a side runs in."""
    cases = {
        f"{method}/{name}": case for method in trajectories.METHODS for name, case in trajectories.read(method).items()
    }
    return {
        name: [name.partition("/")[0], *flags(case["settings"], materials), "--out", f"out/{name}", "--quiet"]
        for name, case in cases.items()
        if part in name
    }


def flags(settings: dict[str, Any], materials: Materials) -> list[str]:
    """Settings as flags of the command line."""
    words = []
    for name, value in {**settings, "log_every": 1, "threads": 1}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if name in NAMED and materials.path(value) != value:
            value = f"materials/{value}"
        words += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return words


def checked_out(stack: ExitStack, folder: Path, commit: str) -> Path:
    """A worktree of a commit that goes away with the stack."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    stack.callback(subprocess.run, [*git, "remove", "--force", str(folder)], check=True)
    return folder


def train(folder: Path, materials: Path, sources: Path, commands: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Run the commands with some sources; artifact → what there is to compare of it."""
    folder.mkdir()
    (folder / "materials").symlink_to(materials)
    settings = {"PYTHONPATH": str(sources), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    sys.stderr.write(f"{len(commands)} commands with {sources}\n")
    log = folder / "log.txt"
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, str(sources)],
            input=json.dumps(commands),
            text=True,
            cwd=folder,
            env={**os.environ, **settings},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{sources}: the run ended with {done.returncode}\n{log.read_text()[-2000:]}")
    codes = json.loads((folder / "codes.json").read_text())
    if any(codes.values()):
        errors = [line for line in log.read_text().splitlines() if "error: " in line]
        sys.stderr.write(
            "\n".join([f"{name}: exit code {code}" for name, code in codes.items() if code] + errors) + "\n"
        )
    out = folder / "out"
    artifacts = sorted(path.parent for path in out.rglob("slimformer.json"))
    failed: dict[str, dict[str, Any]] = {name: {} for name, code in codes.items() if code}
    return {**failed, **{str(path.relative_to(out)): digests(path) for path in artifacts}}


def digests(folder: Path) -> dict[str, Any]:
    """What there is to compare of an artifact: tensors, files and the lasting part of the manifest."""
    weights: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNCOMPARED):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            weights |= {f"{name}: {tensor}": digest for tensor, digest in tensor_digests(path.read_bytes()).items()}
        else:
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"weights": weights, "files": files, "manifest": lasting((folder / "slimformer.json").read_bytes())}


def tensor_digests(content: bytes) -> dict[str, str]:
    """Name → SHA-256 of type, shape and bytes of each tensor of a safetensors file, and of its metadata."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    result = {"metadata": hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        kind = f"{entry['dtype']} {entry['shape']} ".encode()
        result[name] = hashlib.sha256(kind + content[begin:end]).hexdigest()
    return result


def lasting(manifest: bytes) -> dict[str, str]:
    """What a manifest says of the result, flat: the path of each value and the value as JSON."""
    flat: dict[str, str] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if path and (path[-1] in PASSING or (len(path) > 1 and path[-2] == "config" and path[-1] in PATHS)):
            return
        if isinstance(value, dict):
            for key, each in value.items():
                walk(each, (*path, key))
        elif path[:1] == ("steps",) and isinstance(value, list) and len(path) == 1:
            for number, each in enumerate(value):
                walk(each, (*path, str(number)))
        elif value not in (None, []):
            flat[".".join(path)] = json.dumps(value)

    walk(json.loads(manifest), ())
    return flat


def compared(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """The verdict on weights, files and manifest of one artifact."""
    verdicts = {}
    for part in ("weights", "files", "manifest"):
        if part not in old or part not in new:
            sides = [side for side, result in (("old", old), ("new", new)) if part not in result]
            verdicts[part] = f"missing in {' and '.join(sides)}"
            continue
        names = {*old[part], *new[part]}
        if part == "manifest":
            names = {name for name in names if ".config." not in name or (name in old[part] and name in new[part])}
        apart = sorted(name for name in names if old[part].get(name) != new[part].get(name))
        verdicts[part] = f"{len(apart)} differ, such as {apart[0]}" if apart else "same"
    return verdicts


def table(rows: dict[str, dict[str, str]]) -> str:
    """Artifacts and verdicts as aligned text."""
    lines = [("artifact", "weights", "files", "manifest"), *((name, *row.values()) for name, row in rows.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]) for line in lines
    ]
    equal = sum(set(row.values()) == {"same"} for row in rows.values())
    return "\n".join([*text, f"{equal} of {len(rows)} artifacts are the same"]) + "\n"


if __name__ == "__main__":
    main()
