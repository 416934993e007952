"""What a model is made of, found once and used by every method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import nn

from slimformer.anatomy.block import Block, refuse_pinned_block
from slimformer.anatomy.family import Family, family_of, known
from slimformer.anatomy.matrix import Matrix
from slimformer.errors import AnatomyError, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig


class Anatomy:
    """The parts of a Transformer, by the roles every family shares.

    Example:
        >>> anatomy = Anatomy.of(model)
        >>> anatomy.blocks[0].query.weight.shape
        torch.Size([384, 384])
    """

    def __init__(self, model: nn.Module, base: nn.Module, family: Family) -> None:
        self.model = model
        self.base = base
        self.family = family
        count = len(list(base.get_submodule(family.blocks).children()))
        self.blocks = tuple(Block(base, family, index) for index in range(count))

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        """Describe a base model or any model with a head around it, also inside DDP or `torch.compile`."""
        model = unwrap(model)
        config: Any = getattr(model, "config", None)
        model_type = getattr(config, "model_type", None)
        if model_type is None:
            raise AnatomyError(f"a {type(model).__name__} has no Transformers config; give a `transformers` model")
        family = family_of(model_type).of_config(config)
        base = getattr(model, "base_model", model)
        try:
            base.get_submodule(family.blocks)
        except AttributeError:
            raise AnatomyError(
                f"a {type(model).__name__} has no `{family.blocks}`, where family `{family.name}` keeps its blocks; "
                "check the installed transformers version"
            ) from None
        refuse_beyond(model)
        return cls(model, base, family)

    def __repr__(self) -> str:
        return f"Anatomy({self.family.name}, {len(self.blocks)} blocks, hidden {self.hidden})"

    @property
    def config(self) -> PretrainedConfig:
        """The model's Transformers config."""
        return cast("PretrainedConfig", self.base.config)

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.blocks[0].output.shape[0]

    @property
    def word_embedding(self) -> Matrix | None:
        """The token table, one row per token; None for images."""
        return self._base_matrix(self.family.word_embedding)

    @property
    def embeddings(self) -> tuple[nn.Module, ...]:
        """The modules that make the first hidden states, word and patch embedding included."""
        found = (find(self.base, path) for path in self.family.embeddings)
        return tuple(module for module in found if module is not None)

    @property
    def patch_embedding(self) -> nn.Module | None:
        """The patch projection; None for text."""
        return self._base_module(self.family.patch_embedding)

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm after the last block; None where there is none."""
        return self._base_module(self.family.final_norm)

    @property
    def pooler(self) -> Matrix | None:
        """The pooler's matrix, wherever the model keeps it; None where there is none."""
        path = self.family.pooler
        for root in (self.base, self.model):
            if path is not None and find(root, path) is not None:
                return Matrix(root, path)
        return None

    @property
    def head(self) -> dict[str, nn.Module]:
        """The task head: modules with parameters that stand around the base model, by name."""
        if self.model is self.base:
            return {}
        pooler = None if self.family.pooler is None else self.family.pooler.partition(".")[0]
        return {
            name: module
            for name, module in self.model.named_children()
            if module is not self.base and name != pooler and any(True for _ in module.parameters())
        }

    def keep_blocks(self, indices: Sequence[int]) -> None:
        """Keep only these blocks for good, in their order; the config follows."""
        if not indices:
            raise AnatomyError(f"no block of {len(self.blocks)} would be left; keep at least one")
        dropped = [block for block in self.blocks if block.index not in indices]
        for block in dropped:
            refuse_pinned_block(block)
        modules: Any = self.base.get_submodule(self.family.blocks)
        kept = [modules[index] for index in sorted(indices)]
        del modules[:]
        modules.extend(kept)
        for number, block in enumerate(kept):
            for module in block.modules():
                if hasattr(module, "layer_idx"):
                    module.layer_idx = number
        config: Any = self.config
        config.num_hidden_layers = len(kept)
        types = getattr(config, "layer_types", None)
        if types is not None:
            config.layer_types = [types[index] for index in sorted(indices)]
        self.blocks = tuple(Block(self.base, self.family, index) for index in range(len(kept)))

    def _base_matrix(self, path: str | None) -> Matrix | None:
        return None if path is None or find(self.base, path) is None else Matrix(self.base, path)

    def _base_module(self, path: str | None) -> nn.Module | None:
        return None if path is None else find(self.base, path)


def refuse_beyond(model: nn.Module) -> None:
    """Raise where a model of a known family has a part that the family's entry does not describe: T5's decoder."""
    model_type = cast("Any", model).config.model_type
    beyond = family_of(model_type).beyond if model_type in known() else None
    if beyond is not None and find(cast("nn.Module", getattr(model, "base_model", model)), beyond) is not None:
        raise AnatomyError(
            f"a {type(model).__name__} has a `{beyond}`, and of family `{model_type}` only encoders are known; give a "
            "model of the encoder alone, or a task whose head stands on that"
        )


def unwrap(model: nn.Module) -> nn.Module:
    """Take a model out of DDP-like wrappers and `torch.compile`."""
    if not isinstance(model, nn.Module):
        raise AnatomyError(f"`{describe(model)}` is no model; open it first, with `slimformer.load` or transformers")
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and not hasattr(model, "config"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def find(root: nn.Module, path: str) -> nn.Module | None:
    """The module at a dotted path, or None."""
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None
