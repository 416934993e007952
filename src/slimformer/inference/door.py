"""The one door: whatever a user names, an alias, a Hub name, a checkpoint, an artifact or ONNX, is opened here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from slimformer import models
from slimformer.artifact.loading import checked_manifest, load_checked
from slimformer.artifact.manifest import read_manifest
from slimformer.artifact.storage.elastic import nest_sizes
from slimformer.artifact.storage.onnx.handler import not_in_torch
from slimformer.artifact.storage.plain import refuse_cast
from slimformer.errors import ArtifactError, SizeError
from slimformer.inference.native import (
    OpenNative,
    OpenNativeDecoder,
    is_native,
    open_floats,
    open_nested,
    open_packed,
    refuse_with_engine,
)
from slimformer.inference.onnx import OnnxSource, OpenOnnx, look_up_onnx, onnx_file, open_onnx, refuse_flags
from slimformer.inference.runners import TorchRunner
from slimformer.inference.source import Source, is_artifact
from slimformer.models.settings import as_dtype
from slimformer.registry import STORAGE
from slimformer.sizes import Elastic, extract, is_elastic, make_plain
from slimformer.tasks.images import check_image_size
from slimformer.views import restore_output

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedModel

    from slimformer.artifact import Loaded
    from slimformer.tasks.kinds.kind import Kind


@dataclass(frozen=True)
class OpenModel:
    """A model in memory, in eval mode, with what prepares its inputs.

    Args:
        source: What was opened.
        model: The model.
        processor: Its tokenizer or image processor; None where it was not asked for.
    """

    source: Source
    model: PreTrainedModel
    processor: Any = None

    def runner(self, kind: Kind) -> TorchRunner:
        """What runs the model for a kind of task; embeddings are of the model without its head."""
        return TorchRunner(self.model.base_model if kind.embeds else self.model, kind)


#: A model that can be asked, whatever runs it.
Runnable: TypeAlias = "OpenModel | OpenOnnx | OpenNative | OpenNativeDecoder"


def look_up(name: str | Path) -> Source:
    """Say what a name stands for.

    Refused are an artifact that was changed since it was saved, and a checkpoint whose weights are no safetensors.

    Args:
        name: An alias, a folder, a Hub name, an artifact or an ONNX file.
    """
    file = onnx_file(name)
    if file is not None:
        return look_up_onnx(name, file)
    manifest = checked_manifest(models.located(name)) if is_artifact(name) else None
    source = Source(str(name), models.load_config(name), manifest)
    if manifest is None:
        models.check_weights(name, models.stored_class(source.config, source.name))
    return source


def open_skeleton(name: str | Path, size: str | None = None) -> PreTrainedModel:
    """A model on the meta device: every shape and type, no memory and no weights.

    Args:
        name: An alias, a folder, a Hub name or an artifact.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
    """
    skeleton = models.load_skeleton(name)
    if size is None:
        return skeleton
    if not is_artifact(name) or not STORAGE.get(read_manifest(models.located(name)).model.storage).nested:
        raise _one_size_only(str(name), size)
    nest_sizes(models.located(name), skeleton)
    return cast("PreTrainedModel", extract(skeleton, size))


def open_model(
    name: str | Path | Source,
    *,
    model_class: Any = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    keep_sizes: bool = False,
    processor: bool = True,
    dtype: str | None = None,
    trust_remote_code: bool = False,
) -> OpenModel:
    """Open a model for inference.

    Args:
        name: An alias, a folder, a Hub name, an artifact, or what `look_up` said of one.
        model_class: The class to load a plain checkpoint into, which must have that head; by default the class it
            was saved from. An artifact is always of its own class.
        base: Where the base of a mask is; where it was at saving when not given.
        cast_base: Whether that base may have been cast to 16 bits, which changes answers a little.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Which size of an elastic model, such as `S` or one for each block; by default the largest.
        keep_sizes: Whether the other sizes are needed too, to be used from the same weights.
        processor: Whether the tokenizer or image processor is needed.
        dtype: Type of the weights in memory; `stored` for that which its config names. By default an artifact keeps
            its own, and a plain checkpoint is loaded as float32. Weights that were rounded for the file count as
            float32.
        trust_remote_code: Run code that the model brings or refers to.
    """
    kind = as_dtype(dtype)
    with models.trusting(trust_remote_code):
        source = name if isinstance(name, Source) else look_up(name)
        if isinstance(source, OnnxSource):
            raise not_in_torch(source.name)
        if source.manifest is not None:
            loaded, _ = load_checked(  # `look_up` has compared the sums
                models.located(source.name),
                source.manifest,
                dtype=kind,
                base=base,
                cast_base=cast_base,
                check=check,
            )
            return _opened(source, loaded, processor, size, keep_sizes)
        if base is not None:
            raise ArtifactError(
                f"a base was given, `{base}`, but `{source.name}` is no mask and needs none; leave it out"
            )
        refuse_cast(source.name, cast_base)
        _refuse_size(source, size)
        return _open_checkpoint(source, model_class, processor, dtype)


def open_runnable(
    source: Source,
    *,
    base: str | Path | None = None,
    cast_base: bool = False,
    check: bool = True,
    size: str | None = None,
    engine: str | None = None,
    **loading: Any,
) -> Runnable:
    """Open a model to be asked, whatever runs it.

    Args:
        source: What `look_up` said of it.
        base: As for `open_model`; refused for ONNX, as are the next two.
        cast_base: Likewise.
        check: Whether an artifact must answer as recorded at saving; its sums are compared in any case.
        size: Likewise.
        engine: `native` for the native engine; torch, or ONNX Runtime for ONNX, when not given.
        loading: What else `open_model` takes.
    """
    if isinstance(source, OnnxSource):
        refuse_flags(source.name, base=base, cast_base=cast_base, size=size, engine=engine)
        return open_onnx(source, check=check)
    native = is_native(engine)
    if native and source.storage == "packed":
        refuse_with_engine(base=base, cast_base=cast_base or None, size=size)
        return open_packed(source, processor=loading.get("processor", True))
    if native:
        loading["keep_sizes"] = False
        if source.is_nested and base is None and not cast_base:
            nested = open_nested(source, size, processor=loading.get("processor", True))
            if nested is not None:
                return nested
    opened = open_model(source, base=base, cast_base=cast_base, check=check, size=size, **loading)
    return open_floats(source, opened.model, opened.processor) if native else opened


def _opened(source: Source, loaded: Loaded, processor: bool, size: str | None, keep_sizes: bool) -> OpenModel:
    if processor and loaded.processor is None:
        raise ArtifactError(
            f"artifact `{source.name}` has no tokenizer or image processor; save it again with its processor"
        )
    if not is_elastic(loaded.model):
        _refuse_size(source, size)
        return OpenModel(source, loaded.model, loaded.processor)
    model: Any = loaded.model
    if keep_sizes:
        Elastic.of(model).set(Elastic.of(model).largest if size is None else size)
    else:
        model = make_plain(model) if size is None else extract(model, size)
    return OpenModel(source, model, loaded.processor)


def _refuse_size(source: Source, size: str | None) -> None:
    if size is not None:
        raise _one_size_only(source.name, size)


def _one_size_only(name: str, size: str) -> SizeError:
    return SizeError(f"`--size` is `{size}`, and `{name}` has one size only; leave it out")


def _open_checkpoint(source: Source, model_class: Any, processor: bool, dtype: str | None) -> OpenModel:
    reader = models.load_processor(source.name) if processor else None
    if reader is not None and models.sees_images(source.config):
        check_image_size(reader, source.config, source.name)
    model_class = model_class or models.stored_class(source.config, source.name)
    model = models.load_model(source.name, model_class, whole=True).eval()
    restore_output(model)
    if dtype is not None:
        _cast(model, source.config.dtype if dtype == "stored" else as_dtype(dtype))
    if reader is not None:
        models.name_padding(model, reader)
    return OpenModel(source, model, reader)


def _cast(model: nn.Module, dtype: Any) -> None:
    import torch

    model.to(dtype or torch.float32)
