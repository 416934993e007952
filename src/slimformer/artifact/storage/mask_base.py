"""The base of a mask: found where it was recorded or given, and refused when it is another one."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer import models
from slimformer.artifact.checks import sum_file
from slimformer.artifact.layout import CONFIG
from slimformer.artifact.provenance import describe_base
from slimformer.artifact.storage.plain import save_processor
from slimformer.errors import ArtifactError, CheckpointError
from slimformer.files import as_path

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from slimformer.artifact.storage.mask_file import BaseRecord, MaskFile

#: Files a tokenizer or image processor is read from.
PROCESSOR_FILES = frozenset(
    {
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt"),
        *("vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model"),
        *("preprocessor_config.json", "processor_config.json", "chat_template.jinja"),
    }
)


#: Recorded as the place of a base that lay in a folder of the machine where its mask was made.
UNKNOWN = "…/"

_fingerprints: dict[tuple[tuple[str, int, int], ...], str] = {}
#: Questions whether a base is that of a mask to which the answer was yes, in this process.
_accepted: set[tuple[Any, ...]] = set()


def source_of(base: str | Path) -> str:
    """What finds a base again from anywhere: an alias, a Hub name with its commit, or the whole path of a folder."""
    text = str(base)
    if text in models.ALIASES:
        return text
    hub, folder = models.hub_name(base), Path(models.resolve(base))
    return str(folder.resolve()) if hub is None else str(models.HubName(hub.repo, folder.name))


def fingerprint_of(base: str | Path) -> str:
    """The fingerprint of a base's weights, fetched from the Hub if need be.

    It is remembered in this process for as long as neither size nor time of the files changes.
    """
    state = _state(base)
    if not state:
        return _computed(base)
    if state not in _fingerprints:
        _fingerprints[state] = _computed(base)
    return _fingerprints[state]


def _state(base: str | Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when the files of a base do; empty where there are none, which says nothing of any base."""
    found: list[tuple[str, int, int]] = []
    folder = _folder(base)
    for path in [*sorted(folder.glob("*.safetensors*")), *folder.glob("config.json")]:
        status = path.stat()
        found.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
    return tuple(found)


def _folder(base: str | Path) -> Path:
    """Where the files of a base lie: its folder, or that in the cache of the Hub."""
    return Path(models.resolve(base))


def _computed(base: str | Path) -> str:
    found = describe_base(base).fingerprint
    if found is None:
        raise ArtifactError(
            f"the weights of `{base}` are not stored as safetensors, so a mask could not tell it from another base; "
            "load it with transformers and save it with `save_pretrained`, then start from that folder"
        )
    return found


def mask_config(folder: Path) -> PretrainedConfig:
    """The config of a mask's model, whose weights are those of its base and so never packed."""
    config: PretrainedConfig = models.load_config(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise ArtifactError(f"{CONFIG} of the mask in `{folder}` tells of packed weights; copy the artifact again")
    return config


def find_base(file: MaskFile, folder: Path, given: str | Path | None = None, *, cast: bool = False) -> str:
    """Where the base of a mask is: as given, as recorded, or under its name beside the mask's folder.

    Args:
        file: The mask.
        folder: Its folder.
        given: Where the base is to be; elsewhere it is not looked for then.
        cast: Whether a base whose weights were cast to 16 bits will do.

    Raises:
        ArtifactError: If it is not there, or if what is there is another one.
    """
    record = file.base
    wrong: tuple[str | Path, str] | None = None
    recorded: list[str | Path] = [record.source] if record.source != UNKNOWN else []
    recorded.append(folder.resolve().parent / record.name)
    for place in recorded if given is None else [given]:
        try:
            fingerprint = fingerprint_of(place)
        except (CheckpointError, ArtifactError):
            if given is not None and as_path(given).is_dir():
                raise
            continue
        try:
            check_base(file, folder, place, fingerprint, cast=cast)
        except (CheckpointError, ArtifactError) as error:
            wrong = wrong or (place, str(error).partition("; ")[0])
            continue
        return str(place)
    if wrong is not None:
        raise ArtifactError(
            f"`{wrong[0]}` is not the base of the mask in `{folder}`: {wrong[1]}; "
            f"give the base `{record.name}` as it was with `--base`"
        )
    raise ArtifactError(
        f"the base `{record.name}` of the mask in `{folder}` is not at `{given or recorded[0]}`; "
        "give its folder with `--base`"
    )


def check_base(file: MaskFile, folder: Path, base: str | Path, fingerprint: str, *, cast: bool = False) -> None:
    """Raise with the reason where a base is another than that of a mask."""
    record = file.base
    if record.identity is None:
        if fingerprint != record.fingerprint:
            raise ArtifactError(
                f"the fingerprint of its weights is {fingerprint[:12]}… and was {record.fingerprint[:12]}…"
            )
        return
    architecture = models.stored_class(models.load_config(folder), str(folder))
    state = _state(base)
    asked = (state, architecture.__name__, *sorted(file.whole), record.identity.model_dump_json(), cast)
    if asked not in _accepted or not state:
        names = [name for name in model_names(architecture, folder, base) if name not in file.whole]
        record.identity.check(base, names, architecture, allow_cast=cast)
        _accepted.add(asked)


def model_names(architecture: type[PreTrainedModel], folder: Path, base: str | Path) -> list[str]:
    """What a mask's model calls its tensors."""
    import torch

    config = full_size(models.load_config(folder), models.load_config(base))
    try:
        with torch.device("meta"):
            return list(architecture(config).state_dict())
    except Exception as error:
        raise ArtifactError(f"its heads and widths make no {architecture.__name__}: {error}") from error


def names_in_base(base: str | Path, architecture: type[PreTrainedModel]) -> set[str]:
    """What the tensors of a base are called in a model of another class on it."""
    skeleton = models.load_skeleton(base)
    return {
        *skeleton.state_dict(),
        *(f"{architecture.base_model_prefix}.{name}" for name in skeleton.base_model.state_dict()),
    }


def full_size(config: PretrainedConfig, of_base: PretrainedConfig) -> PretrainedConfig:
    """A copy of a model's config with the widths of its base, which some blocks may have lost since."""
    from slimformer.anatomy import family_of

    config = copy.deepcopy(config)
    for name in (family_of(config.model_type).ffn_size, "num_attention_heads", "num_key_value_heads"):
        if hasattr(of_base, name):
            setattr(config, name, getattr(of_base, name))
    return config


def processor_sums(base: str | Path) -> dict[str, str]:
    """SHA-256 of the files a base's tokenizer or image processor is read from."""
    folder = _folder(base)
    return {path.name: sum_file(path).sha256 for path in sorted(folder.iterdir()) if path.name in PROCESSOR_FILES}


def base_processor(record: BaseRecord, base: str | Path) -> Any:
    """The tokenizer or image processor of a base; refused if its files are not those of the time of saving."""
    check_processor(record, base)
    return models.load_processor(base)


def check_processor(record: BaseRecord, base: str | Path) -> None:
    """Refuse a base whose tokenizer or image processor has changed since a mask was made."""
    sums = processor_sums(base)
    for name, recorded in record.processor.items():
        if sums.get(name) != recorded:
            raise ArtifactError(
                f"`{name}` of base `{base}` has changed since the mask was made; give the base as it was with `--base`"
            )


def is_of_base(processor: Any, base: str | Path) -> bool:
    """Whether a tokenizer or image processor is that of a base."""
    return _written(processor) == _written(models.load_processor(base))


def _written(processor: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="slimformer-") as folder:
        save_processor(Path(folder), processor)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
