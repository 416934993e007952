"""Batches that a model is traced with and on which a file is compared with its model.

Several sizes and lengths, other than the traced ones, rows of different lengths filled up with padding; images have
one size. All values are drawn with a fixed seed.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slimformer import models
from slimformer.anatomy import Anatomy
from slimformer.errors import ConfigError, describe
from slimformer.tasks.kinds import input_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

Batch = dict[str, Tensor]
#: Tokens of the longest text compared, where nobody asks for another number.
LENGTH = 64
CHOICES = 3


def trace_batch(model: PreTrainedModel) -> Batch:
    """The batch a model is traced with. No axis that may vary has one element: that would count as fixed."""
    return _batch(model, 2, min(8, _positions(model)), seed=0)


def probe_batches(model: PreTrainedModel, length: int | None = None) -> list[Batch]:
    """The batches a file is compared on.

    Args:
        model: The model.
        length: Tokens of the longest row; None for 64, or fewer where the model takes no more.

    Raises:
        ConfigError: Where the model does not take so many tokens.
    """
    positions = _positions(model)
    longest = min(LENGTH, positions) if length is None else length
    if type(longest) is not int or longest < 1:
        raise ConfigError(f"`length` is {describe(longest)}; give 1 or more tokens")
    if longest > positions:
        raise ConfigError(f"`length` is {longest}, but the model has {positions} positions; give {positions} or less")
    shapes = [(1, 1), (3, min(5, longest)), (4, -(-longest // 3)), (8, longest)]
    return [_batch(model, rows, tokens, seed) for seed, (rows, tokens) in enumerate(shapes, start=1)]


def given_batches(model: PreTrainedModel, batches: Sequence[Mapping[str, Tensor]]) -> list[Batch]:
    """Batches that the caller chose, or an error where one has not the inputs that the file will have."""
    wanted = list(trace_batch(model))
    if not batches:
        raise ConfigError("`batches` is empty; give at least one batch, or none for random ones")
    for batch in batches:
        if set(batch) != set(wanted):
            raise ConfigError(f"a batch has the inputs {', '.join(batch) or 'none'}; give {', '.join(wanted)}")
    return [{name: batch[name].cpu() for name in wanted} for batch in batches]


def dynamic_axes(model: PreTrainedModel, batch: Batch) -> tuple[dict[int, str], ...]:
    """For every input the axes that may have any length, with their names."""
    if _of_images(model):
        return tuple({0: "batch"} for _ in batch)
    names = ("batch", "choices", "length") if _has_choices(model) else ("batch", "length")
    return tuple(dict(enumerate(names)) for _ in batch)


def _batch(model: PreTrainedModel, rows: int, length: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    if _of_images(model):
        return _images(model.config, rows, generator)
    return _texts(model, rows, length, generator)


def _images(config: Any, rows: int, generator: torch.Generator) -> Batch:
    height, width = _sides(config.image_size)
    batch = {"pixel_values": torch.randn(rows, config.num_channels, height, width, generator=generator)}
    if config.model_type == "vit_mae":
        # It hides patches in the order of these numbers, which it would draw itself at every call.
        down, across = _sides(config.patch_size)
        batch["noise"] = torch.rand(rows, (height // down) * (width // across), generator=generator)
    return batch


def _texts(model: PreTrainedModel, rows: int, length: int, generator: torch.Generator) -> Batch:
    config: Any = model.config
    table = Anatomy.of(model).word_embedding
    assert table is not None
    vocabulary = table.shape[0]
    padding = getattr(config, "pad_token_id", None) or 0
    texts = rows * CHOICES if _has_choices(model) else rows
    ids = torch.randint(0, vocabulary, (texts, length), generator=generator)
    ids[ids == padding] = (padding + 1) % vocabulary
    # Every row is shorter than the one before, down to a single token.
    lengths = torch.linspace(length, 1, texts).round().long()
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.where(mask.bool(), ids, padding)
    batch = {"input_ids": ids, "attention_mask": mask}
    if _takes_segments(model):
        batch["token_type_ids"] = (torch.arange(length) >= lengths[:, None] // 2).long() * mask
    shape = (rows, CHOICES, length) if _has_choices(model) else (rows, length)
    return {name: tensor.view(shape) for name, tensor in batch.items()}


def _positions(model: PreTrainedModel) -> int:
    """Tokens a model takes at most."""
    limit = None if _of_images(model) else models.positions(model.config)
    return sys.maxsize if limit is None else limit


def _of_images(model: PreTrainedModel) -> bool:
    return model.main_input_name == "pixel_values"


def _has_choices(model: PreTrainedModel) -> bool:
    return "choices" in input_axes(type(model).__name__)


def _takes_segments(model: PreTrainedModel) -> bool:
    """Whether a model tells first from second texts, as BERT does."""
    kinds = getattr(model.config, "type_vocab_size", None) or 0
    return kinds > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def _sides(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
