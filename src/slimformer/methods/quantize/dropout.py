"""A student without dropout: its teacher has none, and noise in one of two models is only noise in their difference."""

from __future__ import annotations

from torch import nn

#: Module, attribute, and the value it had.
Dropout = list[tuple[nn.Module, str, float]]


def take_dropout(model: nn.Module) -> Dropout:
    """Set every dropout of a model to 0, and return what there was."""
    found: Dropout = []
    for module in model.modules():
        # Attention that goes through Transformers' registry is told its dropout by one of these.
        name = "p" if isinstance(module, nn.Dropout) else "attention_dropout"
        value = getattr(module, name, None)
        if isinstance(value, float) and value > 0:
            found.append((module, name, value))
            setattr(module, name, 0.0)
    return found


def give_back(dropout: Dropout) -> None:
    """Set every dropout to what it was."""
    for module, name, value in dropout:
        setattr(module, name, value)
