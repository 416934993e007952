"""An artifact on the engine that is asked for: torch, or the native one, for which nothing of torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from slimformer.artifact.layout import CONFIG
from slimformer.artifact.opening.configs import check_configs, read_config
from slimformer.artifact.opening.files import check_files
from slimformer.artifact.opening.manifest import read_outline
from slimformer.distribution import is_whole
from slimformer.errors import ArtifactError, ConfigError
from slimformer.files import as_path

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from slimformer.artifact.loading import Loaded
    from slimformer.runtime.decoding.texts import NativeTexts


@overload
def load(folder: str | Path, *, engine: Literal["native"]) -> NativeTexts: ...


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
        engine: `native` for the native engine, without torch; what comes then is asked with texts. None of the other
            settings goes with it.

    Example:
        >>> loaded = load("out/sst2")
        >>> loaded.model(**loaded.processor("a fine film", return_tensors="pt")).logits
        >>> load("out/sst2", engine="native").predict("a fine film")
        [{'label': 'positive', 'score': 0.98}]
    """
    if engine is not None:
        others = trust_remote_code or cast_base or not check or (device, dtype, base) != (None, None, None)
        if engine != "native" or others:
            raise ConfigError(f"`engine` is `{engine}`; give `native` with a folder and nothing else, or leave it out")
        return _load_native(_located(folder))
    from slimformer.artifact.loading import load_for_torch

    return load_for_torch(
        folder, check=check, code=trust_remote_code, device=device, dtype=dtype, base=base, cast_base=cast_base
    )


def _located(folder: str | Path) -> Path:
    if not is_whole():
        return as_path(folder)
    from slimformer.models import located

    return located(folder)


def _load_native(path: Path) -> NativeTexts:
    from slimformer.runtime.decoding.architecture import decodes
    from slimformer.runtime.decoding.texts import open_texts
    from slimformer.sizes.table import SIZES

    outline = read_outline(path)
    check_files(path, outline.files)
    check_configs(path)
    # Of an elastic model there is the largest size as a plain or packed checkpoint; decoders read the others of it.
    nested = (path / SIZES).is_file() and decodes(read_config(path / CONFIG))
    if outline.storage not in ("plain", "packed") and not nested:
        raise ArtifactError(
            f"`{path}` is stored as {outline.storage}, which the engine does not read alone; leave out "
            "`engine`, or ask it by `slimformer predict --engine native`, for which torch opens it"
        )
    length = outline.settings.get("max_length")
    return open_texts(path, max_length=length if isinstance(length, int) else None)
