"""Modules that share their weight with the word embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from slimformer.anatomy.anatomy import Anatomy


def tied_head(anatomy: Anatomy) -> nn.Module | None:
    """The output layer of a language model whose weight is the word embedding's, or None."""
    output = getattr(anatomy.model, "get_output_embeddings", lambda: None)()
    table = anatomy.word_embedding
    if output is None or table is None or output is table.module:
        return None
    return output if _stored(output) is _stored(table.module) else None


def tied_modules(anatomy: Anatomy) -> list[nn.Module]:
    """Every other module whose weight is the word embedding's: an output layer, or a second name, as T5 has one."""
    table = anatomy.word_embedding
    if table is None:
        return []
    modules = [each for each in anatomy.model.modules() if isinstance(each, nn.Linear | nn.Embedding)]
    return [each for each in modules if each is not table.module and _stored(each) is _stored(table.module)]


def _stored(module: nn.Module) -> Any:
    """The parameter behind a module's weight, below any views."""
    views = getattr(module, "parametrizations", None)
    return views["weight"].original if views is not None and "weight" in views else module.weight
