"""The model an export starts from, and copies of it to work on."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.artifact.storage.packed import keep_packed
from slimformer.errors import ArtifactError, CheckpointError, ConfigError
from slimformer.inference.door import OpenModel, open_model
from slimformer.inference.evaluation import prepare_split
from slimformer.integrations.onnx.describing import Exported
from slimformer.operators import expand
from slimformer.views import attached, packed_weights, unround_activations
from slimformer.views.attention import use_attention

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from slimformer.inference.evaluation import PreparedSplit
    from slimformer.integrations.onnx.exporting import Numbers
    from slimformer.tasks.options import TaskOptions

#: The attention that is traced: plain products and a softmax, which every runtime has.
ATTENTION = "eager"


def find_model(
    model: nn.Module | str | Path,
    base: str | Path | None = None,
    *,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    processor: Any = None,
    required: bool = False,
) -> Exported:
    """The model that was given or named, checked for what an export cannot do.

    Args:
        model: A Transformers model; or an artifact, a folder, a Hub name or an alias.
        base: Where the base of a mask is, if it has moved.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
        processor: Tokenizer or image processor of a model that is given; of a named one it is its own.
        required: Whether there has to be a tokenizer or image processor.

    Raises:
        UnknownFamilyError: Where the family is none that slimformer knows.
        ArtifactError: Where a view is still on a weight.
    """
    source, loaded = None, model
    if isinstance(model, str | Path):
        opened = open_model(model, base=base, cast_base=cast_base, check=check, size=size, processor=False)
        source, loaded = opened.source, opened.model
        processor = opened.processor or _own_processor(opened, required)
    if processor is None and required:
        raise ArtifactError(
            "the model has no tokenizer or image processor, and a folder or `--data` needs one; give `processor` for a "
            "model in memory, or the name of a single file such as `model.onnx`"
        )
    transformer = cast("PreTrainedModel", Anatomy.of(cast("nn.Module", loaded)).model)
    for at in attached(transformer):
        raise ArtifactError(f"`{at.path}` still has a view on it; call `slimformer.views.bake` before the export")
    return Exported(transformer, source, processor)


def _own_processor(opened: OpenModel, required: bool) -> Any:
    """The tokenizer or image processor of a checkpoint; one file can do without it, where it is missing or broken.

    A decoder's head is told what padding is, as when the checkpoint is asked.
    """
    if opened.source.manifest is not None:
        return None
    try:
        processor = models.load_processor(opened.source.name)
    except CheckpointError:
        if required:
            raise
        return None
    models.name_padding(opened.model, processor)
    return processor


def prepare_data(exported: Exported, options: TaskOptions, split: str) -> PreparedSplit:
    """Make a split of a task ready for the model that is exported, by what it was opened from.

    Args:
        exported: The model.
        options: Task and data; what is not given is what an artifact was trained with.
        split: Which split.
    """
    source = exported.source
    if source is None:
        raise ConfigError("`data` is for a model with a name; give its folder, or compare on `batches`")
    opened = OpenModel(source, exported.model, exported.processor)
    return prepare_split(source.name, options, split, opened=opened)


def check_numbers(model: nn.Module, numbers: Numbers | None) -> Numbers:
    """The numbers to export in: those asked for if the model has them, by default those it has."""
    formats = {weight.format.name for weight in packed_weights(model).values()}
    if numbers is None:
        return "packed" if formats else "float"
    if numbers == "packed" and not formats:
        raise ArtifactError(
            "the model has no packed weights; run `slimformer quantize` first, or export with numbers `int8`"
        )
    if numbers not in ("float", "int8", "packed") and numbers not in formats:
        seen = f"its weights are {', '.join(sorted(formats))}" if formats else "its weights are floats"
        raise ArtifactError(
            f"the model has no {numbers} weights ({seen}); run `slimformer quantize --weights {numbers}` first, "
            "or export with other numbers"
        )
    return numbers


def working_copies(model: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two copies in eval mode: the model as it is, and one to be changed and traced, with activations left alone.

    The copies share their weights with the model unless it is elsewhere than on the CPU or no float32.
    """
    plain = all(
        tensor.device.type == "cpu" and (tensor.dtype == torch.float32 or not tensor.is_floating_point())
        for tensor in chain(model.parameters(), model.buffers())
    )
    source = _copy(model) if plain else _in_float(model)
    expand(source)  # what operators compute has no form in ONNX
    source.eval()
    traced = _copy(source)
    unround_activations(traced)
    use_attention(traced, ATTENTION)
    for each in (source, traced):
        each.config.use_cache = False
    return source, traced


def _in_float(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the CPU in float32, whose packed weights are exactly what their codes say."""
    copied: PreTrainedModel = copy.deepcopy(model).to("cpu", torch.float32)  # type: ignore[arg-type]
    on_cpu = {
        name: replace(weight, held=weight.codes.cpu(), scales=weight.scales.cpu().float())
        for name, weight in packed_weights(copied).items()
    }
    keep_packed(copied, on_cpu)
    return copied


def _copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules; the tensors are those of the model."""
    packed = (tensor for weight in packed_weights(model).values() for tensor in (weight.codes, weight.scales))
    kept = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers(), packed)}
    return copy.deepcopy(model, kept)
