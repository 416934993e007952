"""An encoder that many tasks share, each with masks of its matrices and a head of its own.

Of a mask, what is dropped is kept in memory, a byte for each weight: (W ⊙ M) x = W x - (W ⊙ ¬M) x, so that rows of
all tasks share one product with W. Codes are unpacked for a product anyway: of a packed matrix each task's are unpacked
with those that it drops as 0, and sums are the very integers of the masked model. Neither torch nor Transformers is
imported, and an answer has the same bits alone and among others of any tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.anatomy.family import family_of
from slimformer.runtime.architecture import ARCHITECTURES, HEADS, architecture_of, head_of
from slimformer.runtime.building import ModelParts, modules_of
from slimformer.runtime.checkpoint import Checkpoint, EngineError, read_tensors
from slimformer.runtime.encoder import NativeEncoder, flat_input
from slimformer.runtime.mapping import release
from slimformer.runtime.native import kernels
from slimformer.runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from slimformer.runtime.architecture import Head, Layer
    from slimformer.runtime.onnx import Array

#: What stands in a `Layer` before the name of a module of the encoder.
INSIDE = "BASE."


@dataclass(frozen=True)
class TaskParts:
    """What a task changes of an encoder.

    Args:
        name: What the user calls it, for messages.
        config: As in its `config.json`, with the class of its head.
        kept: Name of a weight of the bare encoder → uint8 in its shape, 0 where the task drops it.
        own: Tensors that are not the encoder's, by the names they have in the task's model.
        prefix: What stands before the names of the encoder in these.
    """

    name: str | Path
    config: Mapping[str, Any]
    kept: Mapping[str, Array]
    own: Mapping[str, Array]
    prefix: str = ""


@dataclass(frozen=True)
class EncoderTask:
    """A task, ready to be run on the encoder that made it.

    Args:
        name: What the user calls it.
        head: What follows the blocks.
        native: Its masks and its head for the kernels.
        mask_bytes: What the masks take in memory.
    """

    name: str | Path
    head: Head
    native: Any
    mask_bytes: int


class SharedEncoder(NativeEncoder):
    """An encoder without a head, in memory once for any number of tasks. Any number of threads may run it at once.

    Args:
        folder: A checkpoint in float32, float16 or bfloat16, or a packed one, which stays as it is.
        config: Its config, complete; one beside it may leave out what is usual.
        threads: Threads of one forward; all that the machine has when not given.

    Raises:
        EngineError: Where the engine does not run such a model; the message says why.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], threads: int | None = None) -> None:
        kind = str(config.get("model_type", ""))
        architecture = architecture_of(kind, str(folder))
        bare = {**config, "architectures": [f"{architecture.classes}Model"]}
        tensors = read_tensors(folder)
        super().__init__(ModelParts(folder, bare, tensors), threads)
        settings = Settings(config, folder)
        self.rounds = settings.rounds()
        self._modules = [
            modules_of(family_of(kind), f"{family_of(kind).blocks}.{number}.") for number in range(len(self._blocks))
        ]
        stored = Checkpoint(folder, tensors, group_size=settings.group_size())
        self._pooling_layers = dict(_pooling_layers(kind, stored, self.hidden))
        release(tensors)

    @property
    def hidden(self) -> int:
        """Numbers of a hidden state."""
        return Settings(self.config, self.name).count("hidden_size", "dim")

    @property
    def bytes(self) -> int:
        """What its matrices and tables take in memory, or of the mapped file."""
        return int(self._encoder.bytes) + sum(int(matrix.bytes) for matrix in self._pooling_layers.values())

    def task(self, parts: TaskParts) -> EncoderTask:
        """Make a task of what it changes.

        Raises:
            EngineError: Where the engine has no such head, or where something is changed that tasks share.
        """
        kind = str(self.config["model_type"])
        head = head_of(kind, parts.config, str(parts.name))
        try:
            return _TaskBuilder(self, parts, head).build(self._blocks, self._modules, self._pooling_layers)
        except (kernels().InputError, TypeError, ValueError, IndexError) as error:
            raise EngineError(f"the engine does not run `{parts.name}`: {error}; copy it again") from error

    def run_tasks(
        self,
        sequences: Sequence[Sequence[int]],
        tasks: Sequence[EncoderTask],
        types: Sequence[Sequence[int]] | None = None,
    ) -> list[Array]:
        """What the models of several tasks compute of some sequences of tokens, in one forward.

        Args:
            sequences: Tokens, as the tokenizer gives them.
            tasks: The task of each; fastest where those of one task follow each other.
            types: The type of each token; 0 when not given.

        Returns:
            For each sequence float32, [1, outputs], or [tokens, outputs] where the head of its task does not pool.
        """
        ids, flat, starts = flat_input(sequences, types)
        native = [task.native for task in tasks]
        return self._finite_of(tasks, self._ask(self._encoder.run_tasks, ids, flat, starts, native))

    def run_images_of_tasks(self, pixels: Array, tasks: Sequence[EncoderTask]) -> list[Array]:
        """The same for images, [images, channels, height, width]."""
        native = [task.native for task in tasks]
        return self._finite_of(tasks, self._ask(self._encoder.run_images_of_tasks, self._patches(pixels), native))

    def _finite_of(self, tasks: Sequence[EncoderTask], answers: list[Array]) -> list[Array]:
        return [self._finite(answer, task.name) for task, answer in zip(tasks, answers, strict=True)]


class _TaskBuilder:
    def __init__(self, encoder: SharedEncoder, parts: TaskParts, head: Head) -> None:
        self.parts = parts
        self.head = head
        self.hidden = encoder.hidden
        self.rounds = encoder.rounds
        self.native = kernels().Task(self.hidden)
        self.mask_bytes = 0
        architecture = ARCHITECTURES[str(encoder.config["model_type"])]
        all_biased = all(parts.config.get(name, True) for name in architecture.biased)
        self.stored = Checkpoint(parts.name, parts.own, all_biased)
        self.used: set[str] = set()

    def build(
        self,
        blocks: Sequence[Mapping[str, tuple[int, int]]],
        modules: Sequence[Mapping[str, Sequence[str]]],
        pooling_layers: Mapping[str, Any],
    ) -> EncoderTask:
        for shapes, names in zip(blocks, modules, strict=True):
            self.native.add_block(**{matrix: self._mask(names[matrix], *shapes[matrix]) for matrix in shapes})
        self.native.pool(self.head.pooling)
        for layer in self.head.layers:
            self._add_layer(layer, pooling_layers)
        for name in [*self.parts.kept, *self.parts.own]:
            if name not in self.used:
                raise EngineError(
                    f"`{self.parts.name}` changes `{name}`, which tasks share on the engine; merge it and open what "
                    "comes of it by itself"
                )
        return EncoderTask(self.parts.name, self.head, self.native, self.mask_bytes)

    def _mask(self, modules: Sequence[str], outputs: int, inputs: int) -> Any:
        """The mask of a matrix of some modules of one height; None where nothing of it is dropped."""
        names = [f"{module}.weight" for module in modules]
        if not any(name in self.parts.kept for name in names):
            return None
        shape = outputs // len(names), inputs
        parts = []
        for name in names:
            kept = np.ones(shape, np.uint8) if name not in self.parts.kept else self.parts.kept[name]
            if kept.shape != shape or kept.dtype != np.uint8:
                raise EngineError(
                    f"the mask of `{name}` of `{self.parts.name}` is {kept.dtype} of shape {list(kept.shape)}, and "
                    f"the weight of shape {list(shape)}; copy it again"
                )
            self.used.add(name)
            parts.append(kept)
        mask = kernels().Mask(np.ascontiguousarray(np.concatenate(parts)))
        self.mask_bytes += mask.bytes
        return mask

    def _add_layer(self, layer: Layer, pooling_layers: Mapping[str, Any]) -> None:
        inner = layer.name.removeprefix(INSIDE)
        name = f"{self.parts.prefix}{inner}" if layer.name.startswith(INSIDE) else layer.name
        mask = None
        if inner in pooling_layers and layer.name.startswith(INSIDE) and f"{name}.weight" not in self.parts.own:
            matrix = pooling_layers[inner]
            mask = self._mask([inner], matrix.outputs, matrix.inputs)
        elif self.rounds and layer.name.startswith(INSIDE):
            raise EngineError(
                f"`{self.parts.name}` has a `{name}` of its own in floats, and its base is packed, where the engine "
                "rounds what that reads; use a bank without `engine`"
            )
        else:
            matrix = self.stored.matrix(name, inputs=self.hidden)
            self._use(name)
        norm = None
        if layer.norm is not None:
            epsilon = Settings(self.parts.config, self.parts.name).epsilon(1e-12)
            norm = kernels().Norm(self.stored.floats(f"{layer.norm}.weight"), self.stored.bias(layer.norm), epsilon)
            self._use(layer.norm)
        self.native.add_head_layer(matrix, layer.activation, norm, mask)

    def _use(self, module: str) -> None:
        self.used |= {f"{module}.weight", f"{module}.bias"}


def _pooling_layers(kind: str, stored: Checkpoint, hidden: int) -> Iterable[tuple[str, Any]]:
    """The layers of the encoder itself that heads read, where it has them."""
    family = ARCHITECTURES[kind].family(kind)
    prefix = stored.prefix(str(family.word_embedding or family.patch_embedding))
    layers = {layer.name for heads in HEADS.values() if kind in heads for layer in heads[kind].layers}
    for inner in sorted(name.removeprefix(INSIDE) for name in layers if name.startswith(INSIDE)):
        if stored.has_weight(f"{prefix}{inner}"):
            yield inner, stored.matrix(f"{prefix}{inner}", inputs=hidden)
