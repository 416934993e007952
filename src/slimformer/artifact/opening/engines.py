"""An artifact on the engine that is asked for: torch, or the native one, for which nothing of torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from slimformer.artifact.opening.configs import check_configs
from slimformer.artifact.opening.files import check_files
from slimformer.artifact.opening.manifest import read_outline
from slimformer.distribution import is_whole
from slimformer.errors import ArtifactError, ConfigError, SizeError
from slimformer.files import as_path

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from slimformer.artifact.loading import Loaded
    from slimformer.runtime.decoding.texts import NativeTexts


@overload
def load(
    folder: str | Path,
    *,
    base: str | Path | None = None,
    engine: Literal["native"],
    size: str | None = None,
) -> NativeTexts: ...


@overload
def load(
    folder: str | Path,
    check: bool = True,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    *,
    engine: None = None,
    size: None = None,
) -> Loaded: ...


def load(
    folder: str | Path,
    check: bool = True,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    base: str | Path | None = None,
    cast_base: bool = False,
    *,
    engine: str | None = None,
    size: str | None = None,
) -> Loaded | NativeTexts:
    """Load an artifact with the class it was saved from.

    What `verify` refuses is refused here too, by the same code.

    Args:
        folder: the folder that `save` wrote, or a copy of it; or its name on the Hub, `owner/name` or
            `owner/name@revision`.
        check: compare how inputs are read and what is answered with what was recorded at saving. Without it the sums
            of all files, and that every weight is there, are checked none the less.
        trust_remote_code: run code that the folder brings or refers to.
        device: where the model goes; the CPU when not given.
        dtype: type of the weights in memory; as saved when not given.
        base: for a mask, where its base is; when not given, where it was at saving, or beside the folder.
        cast_base: for a mask, whether its base may have been cast to 16 bits, which changes answers a little.
        engine: `native` for the native engine, without torch; what comes then is asked with texts or images. Of the
            settings above only `base` goes with it.
        size: for the native engine, which size of an elastic model, such as `S` or one for each block; the largest when
            not given. A model in torch has all of them: `Elastic.of(model).set("S")`.

    Example:
        >>> loaded = load("out/sst2")
        >>> loaded.model(**loaded.processor("a fine film", return_tensors="pt")).logits
        >>> load("out/sst2", engine="native").predict("a fine film")
        [{'label': 'positive', 'score': 0.98}]
    """
    if engine is not None:
        others = trust_remote_code or cast_base or not check or (device, dtype) != (None, None)
        if engine != "native" or others:
            raise ConfigError(
                f"`engine` is `{engine}`; give `native` with a folder, `base` and `size` and nothing else, or leave it "
                "out"
            )
        return _load_native(_located(folder), base, size)
    if size is not None:
        raise ConfigError(
            f"`size` is `{size}`, and a model in torch has all sizes; choose by `Elastic.of(model).set(...)`, or give "
            '`engine="native"`'
        )
    from slimformer.artifact.loading import load_for_torch

    return load_for_torch(
        folder, check=check, code=trust_remote_code, device=device, dtype=dtype, base=base, cast_base=cast_base
    )


def _located(folder: str | Path) -> Path:
    if not is_whole():
        return as_path(folder)
    from slimformer.models import located

    return located(folder)


#: How a model with all its weights in the folder may be stored, as far as the engine reads it.
WHOLE = ("plain", "packed", "per-block", "elastic", "packed-elastic")


def _load_native(path: Path, base: str | Path | None, size: str | None) -> NativeTexts:
    from slimformer.runtime.decoding.texts import open_texts

    outline = read_outline(path)
    check_files(path, outline.files)
    check_configs(path)
    setting = outline.settings.get("max_length")
    length = setting if isinstance(setting, int) else None
    if outline.storage == "mask":
        return _load_masked(path, base, size, length)
    if base is not None:
        raise ArtifactError(f"a base was given, `{base}`, but `{path}` is no mask and needs none; leave it out")
    if outline.storage not in WHOLE:
        raise ArtifactError(
            f"`{path}` is stored as {outline.storage}, which the engine does not read; leave out `engine`, and what it "
            "was made for answers: slimformer predict"
        )
    return open_texts(path, length, size)


def _load_masked(path: Path, base: str | Path | None, size: str | None, length: int | None) -> NativeTexts:
    from slimformer.artifact.opening.masked import open_masked
    from slimformer.runtime.encoder import NativeEncoder
    from slimformer.runtime.model import NativeModel

    if size is not None:
        raise SizeError(f"size `{size}` is asked for, and `{path}` has one size only; leave it out")
    masked = open_masked(path, base)
    return NativeModel(path, max_length=length, encoder=NativeEncoder(masked.parts), processor=masked.processor)
