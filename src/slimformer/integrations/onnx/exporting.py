"""Exporting a model to ONNX: traced, checked, run against its source, and only then given its name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

from slimformer.artifact.storage.onnx.record import KEY, data_beside
from slimformer.errors import ArtifactError, ConfigError
from slimformer.integrations.onnx.placing import ONNX, check_out, drafted
from slimformer.integrations.placing import check_space

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from slimformer.artifact.storage.onnx import OnnxRecord
    from slimformer.integrations.onnx.comparing import Answers
    from slimformer.integrations.onnx.probing import Batch
    from slimformer.tasks.options import TaskOptions

#: What the matrices of an exported file are stored in; see docs/guides/export.md.
Numbers = Literal["float", "int8", "ternary", "packed"]


@dataclass(frozen=True)
class Difference:
    """How far the answers of a file are from those of the model it was made from, over all examples compared.

    Args:
        largest: Largest absolute difference of a value.
        mean: Mean absolute difference.
        relative: Largest difference of an output as a share of the largest value of that output.
        agreement: Share of decisions (classes, tokens, ends of spans) that are the same; None where nothing decides.
        examples: How many examples were compared.
    """

    largest: float
    mean: float
    relative: float
    agreement: float | None
    examples: int


@dataclass(frozen=True)
class Comparison:
    """A file beside the model it was made from, on real examples.

    Args:
        task: The task.
        split: The split of its data.
        examples: How many examples both were asked.
        agreement: Share of examples with the same answer, numbers aside; None where answers are numbers alone.
        largest: Largest absolute difference of an output.
        metrics: How good the file is.
        source_metrics: How good the model is.
    """

    task: str
    split: str
    examples: int
    agreement: float | None
    largest: float
    metrics: dict[str, float]
    source_metrics: dict[str, float]


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    Args:
        path: The file, or the folder that holds it.
        architecture: Class of the model it was made from.
        numbers: What its matrices are stored in.
        bytes: Size of the file, with that of the data beside it where it is too large for one file.
        opset: Version of the ONNX operators it uses.
        inputs: Names of what it takes.
        outputs: Names of what it gives.
        matrices: How many weights are stored in 2, 4 or 8 bits.
        difference: How far its answers are from those of the model, on random inputs or on batches of the caller's.
        comparison: The same on real examples, where some were given.
    """

    path: Path
    architecture: str
    numbers: Numbers
    bytes: int
    opset: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    matrices: int
    difference: Difference
    comparison: Comparison | None = None

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            **asdict(self),
            "path": str(self.path),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }


#: Largest difference, as a share of an output's largest value, that another order of additions may make.
TOLERANCE = 1e-3
#: Bytes of weights in one file at most: ONNX allows two gibibytes, of which the graph needs some.
ONE_FILE = 2**31 - 2**24


def to_onnx(
    model: nn.Module | str | Path,
    out: str | Path,
    *,
    numbers: Numbers | None = None,
    batches: Sequence[Mapping[str, Tensor]] | None = None,
    length: int | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    overwrite: bool = False,
    one_file: int = ONE_FILE,
    processor: Any = None,
    data: TaskOptions | None = None,
    split: str = "dev",
    command: str | None = None,
) -> ExportResult:
    """Write a model as ONNX that takes batches of any size and texts of any length.

    Args:
        model: A Transformers model; or an artifact, a folder, a Hub name or an alias.
        out: A file to write, whose name ends in `.onnx`; or a folder, with the tokenizer and whatever else is needed to
            ask it.
        numbers: What matrices are stored in: "float"; "int8", rounded here; "packed", the 2, 4 or 8 bits the model was
            quantized to; "ternary", the same, and an error where the model is not ternary. By default "packed" where
            the model is packed and "float" where it is not.
        batches: What the file is compared on, each with all inputs of the file; random tokens or pixels by default.
        length: Tokens of the longest random text the file is compared on; the file itself takes any length.
        base: Where the base of a mask is, if it has moved.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
        overwrite: Whether an earlier result that is there may be replaced.
        one_file: Bytes of weights beyond which they go into a second file beside it, whose name ends in `.onnx.data`.
        processor: Tokenizer or image processor of a model that is given in memory; a named one has its own.
        data: Task and data to compare file and model on; what is not given is what an artifact was trained with.
        split: Which split of the data.
        command: The command line, for the record.

    Returns:
        What was written, with how far its answers are from those of the model.

    Raises:
        ConfigError: Where the extra `onnx` is not installed, or a setting is impossible.
        ArtifactError: Where the model cannot be exported, the file differs from it, or the place cannot be written.
            Nothing is left behind.

    Example:
        >>> to_onnx("out/sst2", "sst2.onnx", numbers="int8").difference.largest
    """
    from slimformer.runtime.onnx import check_extra

    check_extra(("onnx", "onnxscript", "onnxruntime"), "an export")
    if numbers is not None and numbers not in get_args(Numbers):
        raise ConfigError(f"`numbers` is `{numbers}`; give one of {', '.join(get_args(Numbers))}")
    from slimformer.integrations.onnx.comparing import check_finite
    from slimformer.integrations.onnx.folder import fill, put_processor
    from slimformer.integrations.onnx.graph import OPSET, answer, trace
    from slimformer.integrations.onnx.matrices import replace_matrices
    from slimformer.integrations.onnx.measuring import compare
    from slimformer.integrations.onnx.probing import given_batches, probe_batches, trace_batch
    from slimformer.integrations.onnx.sources import check_numbers, find_model, prepare_data, working_copies

    path = check_out(out, overwrite, model)
    folder = not ONNX.names(path)
    loading = {"cast_base": cast_base, "check": check, "size": size, "processor": processor}
    exported = find_model(model, base, required=folder or data is not None, **loading)
    chosen = check_numbers(exported.model, numbers)
    prepared = None if data is None else prepare_data(exported, data, split)
    source, traced = working_copies(exported.model)
    asked = probe_batches(source, length) if batches is None else given_batches(source, batches)
    of_source = [answer(source, batch) for batch in asked]
    check_finite(asked, of_source, "the model")
    of_traced = [answer(traced, batch) for batch in asked]
    matrices = replace_matrices(traced, chosen)
    if chosen == "int8":
        # Weights that were rounded just now are others; packed ones have to be the same.
        of_traced = [answer(traced, batch) for batch in asked]
    needed = sum(tensor.nbytes for tensor in chain(traced.parameters(), traced.buffers()))
    check_space(path, needed)
    program = trace(traced, trace_batch(source), list(of_source[0]))
    answers = _Answers(asked, of_source, of_traced)
    with drafted(path, needed=needed, overwrite=overwrite) as draft:
        record = exported.record(chosen, put_processor(draft.parent, exported) if folder else exported.processor_sum())
        difference = _write(program, draft, answers, record, blocks=matrices > 0, beside=needed > one_file)
        comparison = None if prepared is None else compare(draft, prepared)
        if folder:
            fill(draft, exported, record, difference, comparison, size=size, command=command)
        written = sum(each.stat().st_size for each in (draft, data_beside(draft)) if each.is_file())
    graph = program.model.graph
    inputs, outputs = (tuple(value.name for value in values) for values in (graph.inputs, graph.outputs))
    architecture = type(exported.model).__name__
    return ExportResult(path, architecture, chosen, written, OPSET, inputs, outputs, matrices, difference, comparison)


@dataclass(frozen=True)
class _Answers:
    """Batches, what the source answers to them, and what the traced model answers in float arithmetic."""

    batches: list[Batch]
    of_source: list[Answers]
    of_traced: list[Answers]


def _write(
    program: Any, draft: Path, answers: _Answers, record: OnnxRecord, *, blocks: bool, beside: bool
) -> Difference:
    """Write the file, check that it computes what was traced, and measure how far it is from its source."""
    import onnx

    from slimformer.integrations.onnx import graph
    from slimformer.integrations.onnx.comparing import difference, run
    from slimformer.integrations.onnx.matrices import INT8_ACTIVATIONS

    graph.tidy(program.model)
    program.model.metadata_props[KEY] = record.to_text()
    if blocks:
        graph.shrink(program.model)
        # In float arithmetic first: whatever is then different is a fault and not rounding.
        graph.set_accuracy(program.model, 1)
    program.save(draft, external_data=beside)
    onnx.checker.check_model(draft, full_check=True)
    batches = answers.batches
    found = run(draft, batches)
    exact = difference(batches, answers.of_traced, found)
    if exact.relative > TOLERANCE:
        raise ArtifactError(
            f"the exported model is {exact.largest:.3g} away from its source, {exact.relative:.3g} of the largest "
            f"value, and {TOLERANCE} is allowed; nothing was written, export it as another head or family"
        )
    if blocks:
        graph.set_accuracy(program.model, INT8_ACTIVATIONS)
        program.save(draft, external_data=beside)
        found = run(draft, batches)
    return difference(batches, answers.of_source, found)
