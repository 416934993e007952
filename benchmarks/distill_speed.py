"""Useful tokens a second and memory of a distillation, against a plain loop and the package `bertdistiller`.

Every contender does the same work in a process of its own: same teacher, student, relation heads, texts, batch and
length. Tokens of padding do not count. Everyone computes in float32; slimformer once more with a teacher in bfloat16,
which pays on processors that know such numbers. `bertdistiller` needs older libraries, so it runs in an environment
of its own and is left out where there is none:

    python -m venv peer && peer/bin/pip install torch==2.13.0 && peer/bin/pip install bertdistiller
    python benchmarks/distill_speed.py --bertdistiller peer/bin/python
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import BertConfig, BertModel

from harness import RESULTS, keep, options
from slimformer import models
from slimformer.report import Series, curves
from slimformer.tasks import get_task

if TYPE_CHECKING:
    import argparse

PEERS = Path(__file__).parent / "peers"
HALF = "slimformer, 16-bit teacher"
CONTENDERS = {
    "slimformer": "with_slimformer.py",
    HALF: "with_slimformer.py",
    "plain loop": "plain_loop.py",
    "bertdistiller": "with_bertdistiller.py",
}
#: Pair of models → its teacher and the student's shape.
PAIRS: dict[str, tuple[str, dict[str, int]]] = {
    "12x768 to 6x384": ("random", {"layers": 6, "hidden": 384, "attention_heads": 12}),
    "MiniLM-L6 to 3x192": ("minilm", {"layers": 3, "hidden": 192, "attention_heads": 12}),
}
LENGTHS = (64, 128, 256)
TARGETS = {"speed": 1.5, "memory": 0.7}


def save_teacher(name: str, folder: Path) -> str:
    """A BERT with its tokenizer, as every contender can read it."""
    if name == "random":
        torch.manual_seed(0)
        model = BertModel(BertConfig())
    else:
        model = BertModel.from_pretrained(models.resolve("minilm"))
    model.config.architectures = ["BertForMaskedLM"]  # bertdistiller asks for this name and uses the base alone
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    models.load_processor("minilm").save_pretrained(folder)
    return str(folder)


def write_texts(data: Path, folder: Path, tiny: bool) -> dict[str, str]:
    """Reviews, cut by every contender to its length, and passages, which are shorter."""
    reviews = [example["text"] for example in get_task("imdb").load(data / "imdb", ("train",), limit=600)["train"]]
    passages = (data / "lambada" / "lambada_development_plain_text.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for name, texts in {"imdb": reviews, "lambada": passages[:600]}.items():
        path = folder / f"{name}.txt"
        path.write_text("".join(f"{' '.join(text.split())}\n" for text in texts[: 40 if tiny else None]))
        found[name] = str(path)
    return found


def run(contender: str, work: dict[str, Any], arguments: argparse.Namespace) -> dict[str, float]:
    """One contender's figures."""
    python = arguments.bertdistiller if contender == "bertdistiller" else sys.executable
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}
    if contender == HALF:
        work = {**work, "teacher_dtype": "bfloat16"}
    command = [python, str(PEERS / CONTENDERS[contender]), json.dumps(work)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{contender} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(work: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """All contenders in turn, several rounds; medians, and the ratio of ours to the best of the others."""
    contenders = [name for name in CONTENDERS if name != "bertdistiller" or arguments.bertdistiller]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(1 if arguments.tiny else arguments.rounds):
        for name in contenders:
            rounds[name].append(run(name, work, arguments))
    found: dict[str, Any] = {
        name: {figure: statistics.median(one[figure] for one in runs) for figure in runs[0]}
        for name, runs in rounds.items()
    }
    ours = ("slimformer", HALF)
    others = [found[name] for name in contenders if name not in ours]
    fastest, leanest = max(each["tokens_per_second"] for each in others), min(each["peak_mib"] for each in others)
    for name, suffix in zip(ours, ("", ", 16-bit teacher"), strict=True):
        found[f"speed{suffix}"] = round(found[name]["tokens_per_second"] / fastest, 2)
        found[f"memory{suffix}"] = round(found[name]["peak_mib"] / leanest, 2)
    return found


def draw(result: dict[str, Any], path: Path) -> None:
    """Speed and memory over the length, one line for each contender."""
    growth = result["growth"]
    lengths = [int(length) for length in growth]
    names = [name for name in CONTENDERS if name in next(iter(growth.values()))]
    panels = [
        (label, [Series(name, lengths, [growth[str(length)][name][figure] for length in lengths]) for name in names])
        for label, figure in (("tokens a second", "tokens_per_second"), ("memory, MiB", "peak_mib"))
    ]
    path.write_text(curves(panels, x_label="tokens of a text"), encoding="utf-8")


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RESULTS.parents[2] / "shared" / "data")
    parser.add_argument("--bertdistiller", default=None, help="a Python that has the package")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"skipped: no data at {arguments.data}; give --data")
        return
    steps, batch, length = (3, 2, 16) if arguments.tiny else (8, 16, 128)
    shared = {"heads": 48, "batch": batch, "steps": steps, "threads": arguments.threads}
    result: dict[str, Any] = {"targets": TARGETS, "work": {**shared, "length": length}, "pairs": {}}
    with tempfile.TemporaryDirectory() as scratch:
        texts = write_texts(arguments.data, Path(scratch), arguments.tiny)
        pairs = list(PAIRS)[1:] if arguments.tiny else list(PAIRS)
        for pair in pairs:
            name, shape = PAIRS[pair]
            teacher = save_teacher(name, Path(scratch) / name)
            for source, path in texts.items():
                work = {"teacher": teacher, **shape, **shared, "texts": path, "length": length}
                result["pairs"].setdefault(pair, {})[source] = compare(work, arguments)
        if not arguments.tiny:
            longer = {"teacher": teacher, **shape, **shared, "texts": texts["imdb"]}
            result["growth"] = {str(size): compare({**longer, "length": size}, arguments) for size in LENGTHS}
            draw(result, RESULTS / "distill_speed.svg")
    work = {
        f"{pair}, {source}": found for pair, sources in result["pairs"].items() for source, found in sources.items()
    }
    result["ratios"] = {
        name: {figure: value for figure, value in found.items() if figure.startswith(("speed", "memory"))}
        for name, found in work.items()
    }
    for figure in ("tokens_per_second", "peak_mib"):
        result[figure] = {
            name: {contender: round(found[contender][figure], 1) for contender in CONTENDERS if contender in found}
            for name, found in work.items()
        }
    keep("distill_speed", arguments, result)


if __name__ == "__main__":
    main()
