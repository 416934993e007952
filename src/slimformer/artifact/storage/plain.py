"""A plain checkpoint: what `save_pretrained` writes and anyone can load."""

from __future__ import annotations

import copy
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from slimformer.artifact.layout import CONFIG
from slimformer.artifact.storage.handler import Storage
from slimformer.errors import ArtifactError, CheckpointError, ViewError
from slimformer.files import as_path
from slimformer.models import load_config, quiet
from slimformer.models.loading import check_fits
from slimformer.models.processors import processor_class
from slimformer.models.weights import PLAIN_WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from slimformer.artifact.manifest import Manifest
    from slimformer.artifact.storage.handler import Loader

_FILE = "_slimformer_file"
#: How slimformer loads an artifact, whatever it is.
WITH_SLIMFORMER = '```python\nimport slimformer\n\nmodel = slimformer.load("path/to/this/folder").model\n```'


class PlainStorage(Storage):
    """Weights as Transformers stores them, in one safetensors file or in shards."""

    name = "plain"
    weights: ClassVar[tuple[str, ...]] = PLAIN_WEIGHTS
    #: What the card's example imports first.
    imports: tuple[str, ...] = ()
    alone = "With Transformers alone:"

    def write(self, stage: Path, model: PreTrainedModel, processor: Any, base: Any) -> None:
        """Write a plain checkpoint; the weights go into one file whatever their size."""
        save_part(stage, model, max_shard_size="1000TB")
        if processor is not None:
            save_processor(stage, processor)

    def read(
        self,
        folder: Path,
        loader: Loader,
        *,
        dtype: str | torch.dtype | None,
        base: str | Path | None,
        cast_base: bool = False,
    ) -> PreTrainedModel:
        """Load with the class of Transformers, from safetensors only."""
        from slimformer.views import restore_output

        if base is not None:
            raise ArtifactError(f"a base was given, `{base}`, but `{folder}` is no mask and needs none; leave it out")
        refuse_cast(folder, cast_base)
        model_class, code = loader
        try:
            check_fits(str(folder), model_class, load_config(folder), self.tensor_files(folder))
            with quiet():
                model, info = model_class.from_pretrained(
                    str(folder),
                    dtype="auto" if dtype is None else dtype,
                    use_safetensors=True,
                    local_files_only=True,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **code,
                )
        except (ArtifactError, CheckpointError) as error:
            raise ArtifactError(str(error)) from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ArtifactError(
                f"the model of `{folder}` does not load: {reason}; check {CONFIG} and the installed transformers "
                "version"
            ) from error
        _check_loading(folder, info)
        loaded: PreTrainedModel = model.eval()
        try:
            restore_output(loaded)
        except ViewError as error:
            raise ArtifactError(f"the model of `{folder}` does not load: {error}") from error
        return loaded

    def card(self, manifest: Manifest) -> str:
        """With Transformers, and with slimformer."""
        return "\n\n".join(
            [self.alone, self._example(manifest), "With slimformer, which checks every file first:", WITH_SLIMFORMER]
        )

    def _example(self, manifest: Manifest) -> str:
        name = manifest.model.architecture
        names, lines = [name], [f'model = {name}.from_pretrained("path/to/this/folder")']
        reader = processor_class(manifest.files)
        if reader is not None:
            names.append(reader[1])
            variable = "tokenizer" if reader[1] == "AutoTokenizer" else "processor"
            lines.append(f'{variable} = {reader[1]}.from_pretrained("path/to/this/folder")')
        transformers = f"from transformers import {', '.join(sorted(names))}"
        return "\n".join(["```python", *self.imports, transformers, "", *lines, "```"])


def refuse_cast(name: str | Path, cast_base: bool) -> None:
    """Refuse a cast base where there is none: it would only loosen what is checked."""
    if cast_base:
        raise ArtifactError(f"`--cast-base` (`cast_base=True`) is for masks, and `{name}` is none; leave it out")


def save_under(model: PreTrainedModel, file: str) -> None:
    """Let `save_pretrained` of one model name its file so that Transformers alone does not open it; copies do too."""
    model.__dict__[_FILE] = file
    model.__dict__["save_pretrained"] = MethodType(_save_pretrained, model)


def save_plain(model: PreTrainedModel) -> None:
    """Let `save_pretrained` of one model write what Transformers opens again."""
    for name in (_FILE, "save_pretrained"):
        model.__dict__.pop(name, None)


def _save_pretrained(
    self: PreTrainedModel, save_directory: str | Path, *, push_to_hub: bool = False, **settings: Any
) -> None:
    """`save_pretrained` of a model that needs slimformer: one file, under a name of its own."""
    folder = as_path(save_directory)
    settings["max_shard_size"] = "1000TB"
    repository = settings.pop("repo_id", folder.name)
    type(self).save_pretrained(self, folder, **settings)
    (folder / PLAIN_WEIGHTS[0]).replace(folder / self.__dict__[_FILE])
    if push_to_hub:
        self.push_to_hub(repository)


def save_processor(folder: Path, processor: Any) -> None:
    """Write a tokenizer or image processor, without what its last call left in it."""
    save_part(folder, _untouched(processor))


def save_part(folder: Path, part: Any, **settings: str) -> None:
    """Call `save_pretrained` of a model or processor; what it cannot save becomes one line."""
    try:
        with quiet():
            part.save_pretrained(folder, **settings)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"`{type(part).__name__}` cannot be saved: {reason}; nothing was written, mend it and save again"
        ) from error


def _untouched(processor: Any) -> Any:
    """A copy of a processor without what its last call and the environment left in it."""
    plain = copy.deepcopy(processor)
    backend = getattr(plain, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    for kept in (getattr(plain, "init_kwargs", None), getattr(plain, "__dict__", None)):
        if isinstance(kept, dict):
            kept.pop("local_files_only", None)
    return plain


def _check_loading(folder: Path, info: dict[str, Any]) -> None:
    mismatched = {key[0]: f"has shape {list(key[1])} instead of {list(key[2])}" for key in info["mismatched_keys"]}
    missing = dict.fromkeys(info["missing_keys"], "is missing")
    unexpected = dict.fromkeys(info["unexpected_keys"], "has no place in the model")
    problems = {**mismatched, **missing, **unexpected}
    for name in sorted(problems):
        raise ArtifactError(
            f"weights and {CONFIG} of `{folder}` do not belong together: `{name}` {problems[name]} "
            f"({len(problems)} such weights); copy the artifact again"
        )
    if info.get("error_msgs"):
        raise ArtifactError(f"the weights of `{folder}` do not load: {info['error_msgs'][0]}; copy the artifact again")
