"""A mask on its base for the native engine: read, put together and cut in NumPy.

torch takes every base that computes what that of the mask did, under whichever head and in whichever files it lies.
Here it must be the very weights: their fingerprint is the one recorded. What is computed with them the config of the
mask says, whose sum is in the manifest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import family_of
from slimformer.artifact.layout import CONFIG, MASK
from slimformer.artifact.opening.configs import read_config
from slimformer.artifact.opening.files import measure
from slimformer.artifact.opening.fingerprints import fingerprint_of
from slimformer.distribution import is_whole
from slimformer.errors import ArtifactError, CheckpointError, FormatError
from slimformer.files import JsonError, as_path, parse_json
from slimformer.formats.bits import PLAIN, read_bits
from slimformer.formats.drawn import draw_array
from slimformer.formats.layout import BITS as FLAT
from slimformer.runtime.architecture import architecture_of
from slimformer.runtime.building import ModelParts
from slimformer.runtime.checkpoint import Checkpoint, EngineError, read_tensors
from slimformer.runtime.mapping import as_floats, map_metadata, map_tensors
from slimformer.runtime.nesting.cutting import BlockPart, cut
from slimformer.runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from slimformer.runtime.onnx import Array

#: Under which key of the file's metadata the header lies, and the formats that are read.
HEADER, FORMATS = "slimformer", (1, 2)
#: What stands before the names of bits, of what is kept of a block, and of whole tensors.
BITS, KEPT, WHOLE = "bits/", "kept/", "whole/"
#: Under which names configs count heads, and numbers of a drawn tensor that are believed whatever the base is.
HEADS, MOST_DRAWN = ("num_attention_heads", "n_heads"), 2**24
#: Recorded as the place of a base that lay in a folder of the machine where its mask was made.
UNKNOWN = "…/"


@dataclass(frozen=True)
class Masked:
    """A mask on its base.

    Args:
        parts: The model, by the names of its file.
        processor: Where its tokenizer or image processor lies.
    """

    parts: ModelParts
    processor: Path


def open_masked(folder: Path, base: str | Path | None = None) -> Masked:
    """Put a mask on its base, which is looked for where it was recorded, then beside the folder.

    Args:
        folder: That of the mask, whose files were compared with their sums.
        base: Where its base is; elsewhere it is not looked for then.

    Raises:
        ArtifactError: Where there is no base, or another one, or where the mask does not fit it.
    """
    mask = _Mask.read(folder)
    place, tensors = _find_base(mask, folder, base)
    config = read_config(folder / CONFIG)
    if read_config(place / CONFIG).get("quantization_config") is not None:
        raise EngineError(f"the base `{place}` of `{folder}` is packed; leave out `engine`, and torch puts the mask on")
    whole = _named_as_masked(folder, config, place, tensors)
    try:
        parts = mask.put_on(ModelParts(folder, {**config, **mask.heads_of_base(config)}, whole, uneven=True))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:  # a header may say anything
        raise ArtifactError(f"`{folder / MASK}` does not hold together ({error!r}); copy it again") from error
    if not mask.processor:
        return Masked(parts, folder)
    for name, recorded in mask.processor.items():
        if not (place / name).is_file() or measure(place / name)[0] != recorded:
            raise ArtifactError(
                f"`{name}` of base `{place}` has changed since the mask was made; give the base as it was with `base`"
            )
    return Masked(parts, place)


@dataclass(frozen=True)
class _Mask:
    """What a mask file holds; its sum is in the manifest and was compared."""

    folder: Path
    name: str
    source: str
    fingerprint: str
    processor: dict[str, str]
    shapes: dict[str, list[int]]
    kept: dict[str, int]
    drawn: dict[str, dict[str, Any]]
    tensors: Mapping[str, Array]
    format: int

    @classmethod
    def read(cls, folder: Path) -> _Mask:
        path = folder / MASK
        try:
            header = parse_json(map_metadata(path)[HEADER])
            number, base = header["format"], header["base"]
            if number not in FORMATS:
                raise ArtifactError(f"`{path}` is of format {number}, which this slimformer does not read; update it")
            return cls(
                folder=folder,
                name=str(base["name"]),
                source=str(base["source"]),
                fingerprint=str(base["fingerprint"]),
                processor=dict(base.get("processor", {})),
                shapes=dict(header["shapes"]),
                kept=dict(header.get("kept", {})),
                drawn=dict(header.get("drawn", {})),
                tensors=map_tensors(path),
                format=number,
            )
        except (OSError, ValueError, JsonError, KeyError, TypeError) as error:
            raise ArtifactError(f"the header of `{path}` cannot be read ({error!r}); copy it again") from error

    def heads_of_base(self, config: dict[str, Any]) -> dict[str, int]:
        """How many heads a block of the base has, where the mask took some: the config may count what is left."""
        counts = {count for place, count in self.kept.items() if place.endswith("/heads")}
        if len(counts) > 1:
            raise self._wrong("the heads of all blocks")
        return {name: count for name in HEADS if name in config for count in counts}

    def put_on(self, model: ModelParts) -> ModelParts:
        """The model that the mask makes of an assembled base."""
        model = cut(model, self._parts(model)) if self.kept else model
        tensors = dict(model.tensors)
        most = max(MOST_DRAWN, *(tensor.size for tensor in tensors.values()))
        for name, record in self.drawn.items():
            if math.prod(self.shapes[name]) > most:  # nothing of a header is believed before it is compared
                raise self._wrong(name)
            tensors[name] = draw_array(self.shapes[name], record["seed"], record["deviation"])
        file_names = _file_names(model)
        for name, shape in self.shapes.items():
            stored = tensors.get(file_names(name))
            if stored is None or list(stored.shape) != shape:
                raise self._wrong(name)
            tensors[file_names(name)] = as_floats(stored) * self._bits(f"{BITS}{name}", shape)
        for name, tensor in self.tensors.items():
            if name.startswith(WHOLE):
                tensors[file_names(name.removeprefix(WHOLE))] = tensor
        return ModelParts(model.name, model.config, tensors, uneven=True)

    def _parts(self, model: ModelParts) -> list[BlockPart | None]:
        """What is kept of each block."""
        blocks = Settings(model.config, model.name).count("num_hidden_layers", "n_layers")
        parts = [BlockPart()] * blocks
        for place, count in self.kept.items():
            number, _, unit = place.partition("/")
            stored = self.tensors[f"{KEPT}{place}"]
            if not 0 <= int(number) < blocks or FLAT.bytes_for(count) != stored.size:
                raise self._wrong(place)
            flags = np.unpackbits(stored, count=count, bitorder="little")
            known = parts[int(number)]
            places = np.flatnonzero(flags)
            neurons, heads = (places, known.heads) if unit == "neurons" else (known.neurons, places)
            parts[int(number)] = BlockPart(neurons, heads)
        return list(parts)

    def _bits(self, name: str, shape: list[int]) -> Array:
        coded = self.tensors[name]
        if self.format == 1:  # eight to a byte, without a word on how they are written
            coded = np.concatenate([np.array([PLAIN], np.uint8), coded.reshape(-1)])
        try:
            return read_bits(coded, math.prod(shape)).reshape(shape)
        except FormatError as error:
            raise ArtifactError(f"`{self.folder}` does not hold `{name}`: {error}; copy it again") from error

    def _wrong(self, name: str) -> ArtifactError:
        return ArtifactError(f"the mask in `{self.folder}` does not fit `{name}` of its base; copy both again")


def _find_base(mask: _Mask, folder: Path, at: str | Path | None) -> tuple[Path, dict[str, Array]]:
    """The folder of the base, and its tensors."""
    recorded: list[str | Path] = [] if mask.source == UNKNOWN else [mask.source]
    places: list[str | Path] = [*recorded, folder.resolve().parent / mask.name] if at is None else [at]
    reason: ArtifactError | None = None
    for name in places:
        place = _resolved(name)
        if place is None:
            continue
        try:
            tensors = read_tensors(place)
        except EngineError as error:
            reason = reason or error
            continue
        if fingerprint_of(tensors) == mask.fingerprint:
            return place, tensors
        reason = reason or ArtifactError(
            f"`{name}` has not the weights that the mask in `{folder}` was made on; give these with `base`, or leave "
            "out `engine`: torch takes a base that was only saved in another way"
        )
    raise reason or ArtifactError(
        f"the base `{mask.name}` of the mask in `{folder}` is not at `{places[0]}`; give its folder with `base`"
    )


def _resolved(name: str | Path) -> Path | None:
    """The folder that a name stands for, if there is one."""
    if not is_whole():
        return as_path(name) if (as_path(name) / CONFIG).is_file() else None
    from slimformer.models import resolve

    try:
        return as_path(resolve(name))
    except CheckpointError:
        return None


def _named_as_masked(folder: Path, config: dict[str, Any], place: Path, tensors: dict[str, Array]) -> dict[str, Array]:
    """The tensors of a base by the names that they have in the model of the mask, which may have another head."""
    architecture = architecture_of(str(config.get("model_type")), str(folder))
    family = architecture.family(str(config["model_type"]))
    before = Checkpoint(place, tensors).prefix(str(family.word_embedding or family.patch_embedding))
    classes = config.get("architectures")
    bare = isinstance(classes, list) and bool(classes) and classes[0] == f"{architecture.classes}Model"
    prefix = "" if bare else architecture.prefix
    return {
        f"{prefix}{name.removeprefix(before)}" if name.startswith(before) else name: tensor
        for name, tensor in tensors.items()
    }


def _file_names(model: ModelParts) -> Callable[[str], str]:
    """From the names of a model in memory to those of its file, where some modules of a block are called otherwise."""
    architecture = architecture_of(model.kind, str(model.name))
    memory, file = family_of(model.kind), architecture.family(model.kind)
    pairs = [(getattr(memory, field), getattr(file, field)) for field in architecture.file_names if field != "blocks"]

    def name_in_file(name: str) -> str:
        before, inside, rest = name.partition(f"{memory.blocks}.")
        if not inside or not architecture.file_names:
            return name
        number, _, module = rest.partition(".")
        for one, other in pairs:
            if module.startswith(f"{one}."):
                module = f"{other}{module.removeprefix(one)}"
                break
        return f"{before}{file.blocks}.{number}.{module}"

    return name_in_file
