"""Many tasks on one base: masks in a bank, in torch and on the native engine, PEFT LoRA adapters (rank 8) and copies.

Bytes per task, resident memory with all tasks loaded, time to switch task, and throughput of mixed-task batches: one of
texts of equal length, and real sentences, as many for each task, in batches of texts of like length. LoRA answers these
in both ways that PEFT has, rows of several adapters in a batch and adapter by adapter. Nothing is trained: what masks,
adapters and copies hold does not change what they cost. Memory is measured in a process of its own for each; times are
taken in one process, in turn. Answers of the bank on the engine are compared with those of each task asked alone, and
with the masked model of each task in torch; `--untimed` does that and measures memory, and takes no times.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as reports

from harness import in_turn, keep, keep_parts, kept, options
from harness.answers import agreement
from harness.reviews import mixed, real
from peers import lora
from slimformer import models
from slimformer.artifact import Step, save
from slimformer.bank import MaskBank
from slimformer.inference.bench import resident_bytes
from slimformer.methods.mask import MaskConfig
from slimformer.methods.mask.scores import Masking

LABELS = 2
RANK = 8
NATIVE = "mask bank, native"
#: Share of the time that loading a checkpoint takes, and multiples of the memory that one takes.
SWITCH_LIMIT, MEMORY_LIMITS = 1 / 5, {"mask bank": 1.8, NATIVE: 1.5}
#: Rows of a forward, for whoever cuts requests into batches.
BATCH = 32


def fresh(seed: int) -> Any:
    """MiniLM with a new head."""
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_pretrained(models.resolve("minilm"), num_labels=LABELS).eval()


def prepare(folder: Path, tasks: int, blocks: str) -> None:
    """Write masks, adapters and checkpoints of as many tasks."""
    from peft import LoraConfig, get_peft_model

    tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))
    adapted = get_peft_model(fresh(0), LoraConfig(task_type="SEQ_CLS", r=RANK), adapter_name="task0")
    for number in range(1, tasks):
        adapted.add_adapter(f"task{number}", LoraConfig(task_type="SEQ_CLS", r=RANK))
    adapted.save_pretrained(folder / "lora")
    for number in range(tasks):
        model = fresh(number)
        model.save_pretrained(folder / "plain" / f"task{number}")
        Masking.start(model, MaskConfig(seed=number, blocks=blocks)).end(model)
        save(
            folder / "mask" / f"task{number}",
            model,
            base="minilm",
            processor=tokenizer,
            step=Step(method="mask", seed=number),
            task={"name": "classification", "kind": "classification", "labels": ["no", "yes"]},
            storage="mask",
        )


def load_bank(folder: Path, tasks: int, memory_limit: int = 0, engine: str | None = None) -> tuple[MaskBank, Any]:
    """One base and the masks."""
    bank = MaskBank("minilm", memory_limit=memory_limit, engine=engine)
    for number in range(tasks):
        bank.add(f"task{number}", folder / "mask" / f"task{number}")
    return bank, lambda requests: bank.logits(requests, BATCH)


def load_plain(folder: Path, tasks: int) -> tuple[Any, Any]:
    """A whole model for each task."""
    checkpoints = {
        f"task{number}": AutoModelForSequenceClassification.from_pretrained(folder / "plain" / f"task{number}").eval()
        for number in range(tasks)
    }
    tokenizer = AutoTokenizer.from_pretrained(models.resolve("minilm"))

    def ask(requests: dict[str, list[str]]) -> Any:
        with torch.inference_mode():
            return {
                name: checkpoints[name](**tokenizer(texts, padding=True, return_tensors="pt")).logits
                for name, texts in requests.items()
            }

    return checkpoints, ask


LOADERS: dict[str, Any] = {
    "one checkpoint": lambda folder, tasks: load_plain(folder, 1),
    "mask bank": load_bank,
    "mask bank, weights kept": lambda folder, tasks: load_bank(folder, tasks, 1 << 40),
    NATIVE: lambda folder, tasks: load_bank(folder, tasks, engine="native"),
    "LoRA": lambda folder, tasks: lora.load(fresh(0), folder / "lora", tasks, BATCH),
    "LoRA, adapter by adapter": lambda folder, tasks: lora.load_by_task(fresh(0), folder / "lora", tasks),
    "checkpoints": load_plain,
}


def resident(kind: str, folder: Path, tasks: int, rows: int, words: int) -> int:
    """Bytes this process grows by when everything is loaded and every task has answered."""
    # The code, the tokenizer's and the allocator's own memory are there before the count begins.
    model = fresh(0)
    model(**AutoTokenizer.from_pretrained(models.resolve("minilm"))("warm up", return_tensors="pt"))
    import peft  # noqa: F401

    del model
    before = _settled()
    loaded, ask = LOADERS[kind](folder, tasks)
    ask(mixed(1 if kind == "one checkpoint" else tasks, rows, words, 0))
    if isinstance(loaded, MaskBank) and kind != NATIVE:  # whose `use` opens the base anew, in torch
        for name in loaded.tasks:
            loaded.use(name)
    return _settled() - before


def _settled() -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    return resident_bytes()


def in_own_process(kind: str, folder: Path, arguments: argparse.Namespace, sizes: tuple[int, int, int]) -> int:
    """`resident` in a process of its own."""
    command = [sys.executable, __file__, "--resident", kind, "--folder", str(folder)]
    command += ["--threads", str(arguments.threads), "--sizes", ",".join(map(str, sizes))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def switching(folder: Path, bank: MaskBank, adapted: Any, tasks: int, rounds: int) -> dict[str, float]:
    """Median seconds until another task can be asked."""
    turn = itertools.count()

    def load_adapter() -> None:
        adapted.load_adapter(folder / "lora" / f"task{next(turn) % tasks}", adapter_name="other")
        adapted.delete_adapter("other")

    return in_turn(
        {
            "mask bank": lambda: bank.use(f"task{next(turn) % tasks}"),
            "LoRA, loaded": lambda: adapted.set_adapter(f"task{next(turn) % tasks}"),
            "LoRA, from disk": load_adapter,
            "loading a checkpoint": lambda: load_checkpoint(folder, next(turn) % tasks),
        },
        rounds,
    )


def answering(folder: Path, bank: MaskBank, adapted: Any, tasks: int, rounds: int) -> dict[str, float]:
    """Median seconds to turn to another task and answer one text; a checkpoint is read from disk only then."""
    turn = itertools.count()
    batch = AutoTokenizer.from_pretrained(models.resolve("minilm"))("a film to remember", return_tensors="pt")

    def ask_lora() -> None:
        adapted.set_adapter(f"task{next(turn) % tasks}")
        adapted(**batch)

    with torch.inference_mode():
        return in_turn(
            {
                "mask bank": lambda: bank.use(f"task{next(turn) % tasks}")(**batch),
                "LoRA": ask_lora,
                "checkpoint": lambda: load_checkpoint(folder, next(turn) % tasks)(**batch),
            },
            rounds,
        )


def load_checkpoint(folder: Path, number: int) -> Any:
    """The plain model of a task."""
    return AutoModelForSequenceClassification.from_pretrained(folder / "plain" / f"task{number}").eval()


def memory_of(folder: Path, arguments: argparse.Namespace, sizes: tuple[int, int, int], kinds: list[str]) -> Any:
    """Bytes of each kind in a process of its own, and multiples of those of one model."""
    taken = {kind: in_own_process(kind, folder, arguments, sizes) for kind in kinds}
    over = {kind: value / taken["one checkpoint"] for kind, value in taken.items()}
    return {
        "resident_bytes": taken,
        "resident_over_one_model": {kind: round(value, 2) for kind, value in over.items()},
        "memory_holds": {kind: over[kind] <= limit for kind, limit in MEMORY_LIMITS.items()},
    }


def untimed(folder: Path, arguments: argparse.Namespace, tasks: int, rows: int, words: int) -> dict[str, Any]:
    """What other work on the machine does not change: answers, and memory."""
    native, _ = LOADERS[NATIVE](folder, tasks)
    told = agreement(native, real(tasks, rows, arguments.seed), BATCH)
    memory = memory_of(folder, arguments, (tasks, rows, words), ["one checkpoint", *MEMORY_LIMITS])
    holds = told["holds"] and all(memory["memory_holds"].values())
    return {"tasks": tasks, "agreement": told, **memory, "limits": MEMORY_LIMITS, "within_limits": holds}


def measure(folder: Path, arguments: argparse.Namespace, tasks: int, rows: int, words: int, rounds: int) -> Any:
    """Everything about masks, adapters and checkpoints that were prepared."""
    kinds = ["one checkpoint", *MEMORY_LIMITS] if arguments.tiny else [*LOADERS]
    memory = memory_of(folder, arguments, (tasks, rows, words), kinds)
    loaded = {kind: load(folder, tasks) for kind, load in LOADERS.items() if kind != "one checkpoint"}
    ready = loaded["mask bank, weights kept"][0]
    for name in ready.tasks:
        ready.use(name)
    switch = switching(folder, loaded["mask bank"][0], loaded["LoRA"][0], tasks, rounds)
    answer = answering(folder, loaded["mask bank"][0], loaded["LoRA"][0], tasks, rounds)
    requests = mixed(tasks, rows, words, arguments.seed)
    seconds = in_turn({kind: lambda ask=ask: ask(requests) for kind, (_, ask) in loaded.items()}, rounds)
    texts = real(tasks, rows, arguments.seed)
    real_seconds = in_turn({kind: lambda ask=ask: ask(texts) for kind, (_, ask) in loaded.items()}, max(2, rounds // 3))
    per_second = {kind: tasks * rows / value for kind, value in real_seconds.items()}
    best_lora = max(value for kind, value in per_second.items() if kind.startswith("LoRA"))
    switch_share = switch["mask bank"] / switch["loading a checkpoint"]
    told = agreement(loaded[NATIVE][0], texts, BATCH)
    return {
        "tasks": tasks,
        "bytes_per_task": {
            "mask": size(folder / "mask") // tasks,
            "LoRA": size(folder / "lora") // tasks,
            "checkpoint": size(folder / "plain") // tasks,
        },
        **memory,
        "switch_ms": {kind: round(value * 1e3, 3) for kind, value in switch.items()},
        "switch_over_loading": round(switch_share, 4),
        "switch_and_answer_one_text_ms": {kind: round(value * 1e3, 3) for kind, value in answer.items()},
        "mixed_batch": {"rows": rows, "words": words, "tasks": len(requests)},
        "examples_per_second": {kind: round(rows / value, 1) for kind, value in seconds.items()},
        "real_texts": {"rows_of_each_task": rows, "characters": sum(map(len, itertools.chain(*texts.values())))},
        "real_texts_per_second": {kind: round(value, 1) for kind, value in per_second.items()},
        "native_over_lora": round(per_second[NATIVE] / best_lora, 3),
        "agreement": told,
        "limits": {
            "switch_over_loading": SWITCH_LIMIT,
            "resident_over_one_model": MEMORY_LIMITS,
            "native_over_lora": 1,
        },
        "within_limits": switch_share <= SWITCH_LIMIT
        and all(memory["memory_holds"].values())
        and per_second[NATIVE] >= best_lora
        and told["holds"],
    }


def main() -> None:
    """Measure, or, called by itself, measure the memory of one kind."""
    reports.disable_progress_bar()
    reports.set_verbosity(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    parser = options(__doc__)
    parser.add_argument("--blocks", default="2-", help="blocks that are masked")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where to write masks and models, by default a temporary folder")
    parser.add_argument("--untimed", action="store_true", help="compare answers and measure memory, without any times")
    parser.add_argument("--resident", choices=[*LOADERS], help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.resident is not None:
        print(resident(arguments.resident, arguments.folder, *map(int, arguments.sizes.split(","))))
        return
    tasks, rows, words, rounds = (2, 4, 6, 2) if arguments.tiny else (arguments.tasks, 32, 30, 15)
    folder = Path(tempfile.mkdtemp(prefix="mask-bank-", dir=arguments.folder))
    start = time.monotonic()
    try:
        prepare(folder, tasks, arguments.blocks)
        if arguments.untimed or arguments.tiny:
            keep_parts("mask_bank", arguments, {("untimed",): untimed(folder, arguments, tasks, rows, words)})
        if not arguments.untimed:
            earlier = {name: part for name, part in kept("mask_bank").items() if name == "untimed"}
            keep("mask_bank", arguments, measure(folder, arguments, tasks, rows, words, rounds) | earlier)
    finally:
        shutil.rmtree(folder)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
