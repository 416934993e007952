"""What a model costs: bytes, parameters, memory, latency and throughput, measured on this machine."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.artifact.storage.handler import storage_of
from slimformer.counts import MOST, check_count
from slimformer.errors import ConfigError, UsageError, describe
from slimformer.inference.door import open_model
from slimformer.inference.onnx import look_up_onnx, onnx_file, random_arrays, refuse_flags
from slimformer.inference.runners import asked_threads, using_threads
from slimformer.models.settings import as_device
from slimformer.runtime.onnx import check_extra
from slimformer.tasks.kinds import input_axes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


#: A day: more for one shape is a slip of the hand.
MOST_SECONDS = 86_400


@dataclass(frozen=True)
class Timing:
    """Latency of one forward for a batch of one shape."""

    batch: int
    length: int
    p50_ms: float
    p95_ms: float
    examples_per_second: float
    runs: int

    def as_dict(self) -> dict[str, Any]:
        """The timing as JSON types."""
        return {
            "batch": self.batch,
            "length": self.length,
            "latency_ms": {"p50": self.p50_ms, "p95": self.p95_ms},
            "examples_per_second": self.examples_per_second,
            "runs": self.runs,
        }


def bench(
    model: str | Path,
    shapes: list[tuple[int, int]],
    *,
    threads: int | None = None,
    seconds: float = 2.0,
    warm_up: int = 3,
    device: str | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
) -> dict[str, Any]:
    """Measure a model on random inputs.

    Args:
        model: An artifact, a folder, a Hub name, an alias or an ONNX file.
        shapes: Pairs of batch size and length to time; the length of a vision model is the number of its patches.
        threads: CPU threads; None for what PyTorch has chosen.
        seconds: Time to spend on each shape, at least ten runs.
        warm_up: Runs before the clock starts.
        device: Where to run; the CPU when not given.
        base: Where the base of a mask is; where it was at saving when not given.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.

    Returns:
        `bytes` on disk, `parameters`, `peak_memory_bytes` the process grew by while loading and running,
        and for each shape latency and throughput; the first shape's also at the top level.
    """
    _check_asked(shapes, seconds, warm_up)
    file = onnx_file(model)
    if file is not None:
        refuse_flags(model, base=base, cast_base=cast_base, size=size)
        return _bench_onnx(model, file, shapes, asked_threads(threads), device, seconds, warm_up)
    place = as_device(device)
    with using_threads(threads) as used:
        models.load_skeleton(model)  # imports the model's code, whose memory is not the model's
        with PeakMemory() as memory:
            opened = open_model(model, base=base, cast_base=cast_base, check=check, size=size, processor=False)
            loaded: nn.Module = opened.model.to(place)  # type: ignore[arg-type]
            shapes = possible_shapes(loaded, shapes)
            timings = [_timed(loaded, batch, length, seconds, warm_up) for batch, length in shapes]
        parameters = sum(parameter.numel() for parameter in loaded.parameters())
        where, stored = str(next(loaded.parameters()).device), _stored_bytes(model, loaded, size)
        return {**_report(model, stored, parameters, memory, used, where, timings), "size": size}


def _bench_onnx(
    model: str | Path,
    file: Path,
    shapes: list[tuple[int, int]],
    threads: int,
    device: str | None,
    seconds: float,
    warm_up: int,
) -> dict[str, Any]:
    check_extra(["onnxruntime"], f"`{model}`")  # whose memory is not the model's
    with PeakMemory() as memory:
        source = look_up_onnx(model, file, threads=threads, device=device)
        session, timings = source.session, []
        for batch, length in shapes_of(source.config, shapes, images=models.sees_images(source.config)):
            inputs = random_arrays(source, batch, length)
            timings.append(time_calls(partial(session.run, inputs), batch, length, seconds, warm_up))
    report = _report(model, source.bytes, source.parameters, memory, threads, device or "cpu", timings)
    return {**report, "size": None}


def _report(
    model: str | Path,
    stored: int,
    parameters: int,
    memory: PeakMemory,
    threads: int,
    device: str,
    timings: list[Timing],
) -> dict[str, Any]:
    return {
        "model": str(model),
        "bytes": stored,
        "parameters": parameters,
        "peak_memory_bytes": memory.growth,
        "threads": threads,
        "device": device,
        **timings[0].as_dict(),
        "shapes": [timing.as_dict() for timing in timings],
    }


def _check_asked(shapes: list[tuple[int, int]], seconds: float, warm_up: int) -> None:
    """Refuse, before a model is opened, what cannot be timed."""
    if not isinstance(shapes, list | tuple) or not shapes:
        raise UsageError(f"`shapes` is `{describe(shapes)}`; give pairs of batch size and length, at least one")
    for shape in shapes:
        if not isinstance(shape, list | tuple) or len(shape) != 2:
            raise UsageError(f"`shapes` has `{describe(shape)}`; give pairs of batch size and length")
        check_count("batch", shape[0])
        check_count("length", shape[1])
    if not isinstance(seconds, int | float) or not 0 <= seconds <= MOST_SECONDS:
        raise UsageError(f"`--seconds` is `{describe(seconds)}`; give 0 to {MOST_SECONDS}")
    if type(warm_up) is not int or not 0 <= warm_up <= MOST:
        raise UsageError(f"`warm_up` is `{describe(warm_up)}`; give a number of runs, 0 or more")


def _timed(model: nn.Module, batch: int, length: int, seconds: float, warm_up: int) -> Timing:
    try:
        return time_forward(model, batch, length, seconds, warm_up)
    except RuntimeError as error:  # PyTorch has no class of its own for the CPU's memory
        if "memory" not in str(error) and "too large" not in str(error):
            raise
        raise ConfigError(
            f"`--batch` `{batch}` with `--length` `{length}` takes more memory than there is; give smaller ones"
        ) from error


@torch.inference_mode()
def time_forward(model: nn.Module, batch: int, length: int, seconds: float, warm_up: int) -> Timing:
    """Time the forward of one batch of random inputs until the time is up."""
    inputs = random_inputs(model, batch, length)
    finish: Callable[[], Any] = torch.cuda.synchronize if next(model.parameters()).is_cuda else lambda: None

    def forward() -> None:
        model(**inputs)
        finish()

    return time_calls(forward, batch, length, seconds, warm_up)


def time_calls(forward: Callable[[], Any], batch: int, length: int, seconds: float, warm_up: int) -> Timing:
    """Time a forward of a batch until the time is up, at least ten of them."""
    for _ in range(warm_up):
        forward()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 10 or time.perf_counter() < end:
        start = time.perf_counter()
        forward()
        taken.append(time.perf_counter() - start)
    cuts = statistics.quantiles(taken, n=20, method="inclusive")
    middle = statistics.median(taken)
    return Timing(batch, length, round(middle * 1e3, 3), round(cuts[-1] * 1e3, 3), round(batch / middle, 2), len(taken))


def random_inputs(model: nn.Module, batch: int, length: int) -> dict[str, Tensor]:
    """Inputs of a model: token ids, two choices a question for multiple choice, or pixels for a vision model."""
    anatomy = Anatomy.of(model)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    if anatomy.word_embedding is None:
        shape: tuple[int, ...] = (batch, anatomy.config.num_channels, *_sides(anatomy.config.image_size))
        return {"pixel_values": torch.randn(shape, generator=generator).to(device)}
    shape = (batch, 2, length) if "choices" in input_axes(type(model).__name__) else (batch, length)
    if getattr(anatomy.config, "pad_token_id", None) is None:
        anatomy.config.pad_token_id = 0  # decoders with a head insist on one; it is not among the ids below
    ids = torch.randint(5, anatomy.word_embedding.shape[0], shape, generator=generator)
    return {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}


class PeakMemory:
    """How much the resident memory of this process grew at most inside a `with` block, sampled from the system."""

    growth: int = 0

    def __enter__(self) -> PeakMemory:
        _give_back()
        self._start = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.growth = max(self.growth, resident_bytes() - self._start)


def resident_bytes() -> int:
    """Resident memory of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _give_back() -> None:
    """Return freed memory to the system, so that what is taken next cannot hide in it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def possible_shapes(model: nn.Module, shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The shapes a model takes: an image has one length only, and a text at most the model's positions."""
    anatomy = Anatomy.of(model)
    return shapes_of(anatomy.config, shapes, images=anatomy.word_embedding is None)


def shapes_of(config: Any, shapes: list[tuple[int, int]], *, images: bool) -> list[tuple[int, int]]:
    """The same by the model's config alone."""
    if images:
        (height, width), (down, across) = _sides(config.image_size), _sides(config.patch_size)
        return list(dict.fromkeys((batch, (height // down) * (width // across)) for batch, _ in shapes))
    positions = models.positions(config)
    for _, length in shapes:
        if positions is not None and length > positions:
            raise ConfigError(
                f"`--length` is `{length}`, but the model has {positions} positions; give {positions} or less"
            )
    return shapes


def _sides(size: Any) -> tuple[int, int]:
    """Height and width of what a config gives as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _stored_bytes(model: str | Path, loaded: nn.Module, size: str | None) -> int:
    folder = Path(models.resolve(model))
    if size is None and folder.is_dir():
        return sum(file.stat().st_size for file in storage_of(folder).tensor_files(folder))
    return sum(parameter.numel() * parameter.element_size() for parameter in loaded.parameters())
