"""What a model is fed: a map-style data set of inputs, made once, the same every time, and batches of it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from slimformer.errors import DataError
from slimformer.models import IGNORED

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

#: The inputs of one example, under the names the model's forward knows.
Inputs = dict[str, Any]


class Features(Sequence[Inputs]):
    """Inputs of one split; item i holds exactly what the model's forward takes.

    It is a map-style data set to torch's `DataLoader` and to `transformers.Trainer`. What metrics need
    and the model must not see lies in `extra`, one entry for each item.

    Args:
        inputs: The inputs of each item.
        extra: What the metrics of the kind need to know of each item.
        transform: Turns stored inputs into the model's, given the item's index and the epoch. It has to be
            a pure function, so that an interrupted run resumes with the very same inputs.
    """

    def __init__(
        self,
        inputs: Sequence[Inputs],
        extra: Sequence[Any] = (),
        transform: Callable[[Inputs, int, int], Inputs] | None = None,
    ) -> None:
        self._inputs = inputs
        self.extra = extra
        self._transform = transform
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins; only inputs that are drawn anew each epoch (masked tokens) depend on it."""
        self.epoch = epoch

    @overload
    def __getitem__(self, index: int) -> Inputs: ...
    @overload
    def __getitem__(self, index: slice) -> list[Inputs]: ...
    def __getitem__(self, index: int | slice) -> Inputs | list[Inputs]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        inputs = self._inputs[index]
        if self._transform is None:
            return inputs
        return self._transform(inputs, index % len(self), self.epoch)

    def __len__(self) -> int:
        return len(self._inputs)

    def take(self, rows: Sequence[int]) -> Features:
        """Some of the items, each as often as it is named."""
        extra = [self.extra[row] for row in rows] if len(self.extra) else ()
        return Features([self._inputs[row] for row in rows], extra, self._transform)

    @property
    def stored(self) -> Sequence[Inputs]:
        """What the items are made of, before any transform."""
        return self._inputs

    @property
    def lengths(self) -> list[int]:
        """Tokens of each item; nothing is transformed for it, so no image is read."""
        return [item_length(inputs) for inputs in self._inputs]


def item_length(item: Mapping[str, Any]) -> int:
    """Tokens of an item, the longest choice counting where there are several; 0 for images."""
    ids = item.get("input_ids")
    if ids is None:
        return 0
    first = ids[0] if len(ids) else 0
    return max(len(choice) for choice in ids) if np.ndim(first) else len(ids)


#: Makes a batch of some items; holds nothing but numbers, so it pickles to workers.
Collator: TypeAlias = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class PaddingCollator:
    """Stack items into arrays, padding sequences to the longest of the batch.

    Numbers become a vector, sequences of whole numbers a matrix; with `choices`, each entry is a list of sequences and
    becomes [batch, choices, length]. Arrays of floats are of one length already.

    Args:
        fill: Input name → what it is padded with; 0 for a name that is not listed.
        side: Where padding goes.
        choices: Whether each input holds one sequence for each choice.
    """

    fill: Mapping[str, int]
    side: Literal["left", "right"] = "right"
    choices: bool = False

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Make one batch."""
        return {name: self._stack(name, [item[name] for item in items]) for name in items[0]}

    def _stack(self, name: str, values: Sequence[Any]) -> np.ndarray[Any, Any]:
        first = values[0]
        if isinstance(first, (int, float)):
            return np.array(values, np.int64 if all(isinstance(value, int) for value in values) else np.float32)
        if isinstance(first, np.ndarray) and first.dtype.kind == "f":
            return np.stack(values)
        if not self.choices:
            return self._pad(name, values)
        flat = self._pad(name, [sequence for choices in values for sequence in choices])
        return flat.reshape(len(values), len(first), -1)

    def _pad(self, name: str, sequences: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        longest = max(len(sequence) for sequence in sequences)
        padded = np.full((len(sequences), longest), self.fill.get(name, 0), dtype=np.int64)
        for row, sequence in zip(padded, sequences, strict=True):
            if self.side == "right":
                row[: len(sequence)] = sequence
            else:
                row[longest - len(sequence) :] = sequence
        return padded


@dataclass(frozen=True)
class StackingCollator:
    """Stack items of equal shape, such as images."""

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Make one batch."""
        return {name: np.stack([np.asarray(item[name]) for item in items]) for name in items[0]}


@dataclass(frozen=True)
class TensorCollator:
    """Batches of another collator as tensors, for a model in torch."""

    collate: Collator

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Make one batch."""
        return as_tensors(self.collate(items))


def as_tensors(batch: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """A batch as tensors that share the memory of its arrays."""
    import torch

    return {name: torch.from_numpy(array) for name, array in batch.items()}


def padding_collator(
    tokenizer: PreTrainedTokenizerBase, *, side: Literal["left", "right"] | None = None, choices: bool = False
) -> PaddingCollator:
    """A collator that pads as a tokenizer would.

    A tokenizer without a padding token (GPT-2, Llama) pads with its end token, which the attention mask hides.
    """
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    fill = {
        "input_ids": pad or 0,
        "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0),
        "labels": IGNORED,
        "special_tokens_mask": 1,
    }
    return PaddingCollator(fill, side or ("left" if tokenizer.padding_side == "left" else "right"), choices)


#: What stands before the name of an input of the second of a pair.
PARTNER = "partner."


@dataclass(frozen=True)
class _Drawn:
    """Puts to each item another of its group, by seed, epoch and index alone."""

    items: Features
    kept: Sequence[int]
    groups: Sequence[int]
    members: Mapping[int, Sequence[int]]
    seed: int

    def __call__(self, inputs: Inputs, index: int, epoch: int) -> Inputs:
        place = self.kept[index]
        group = self.groups[place]
        others = [other for other in self.members[group] if other != place]
        drawn = random.Random(f"{self.seed} {epoch} {index}").choice(others)
        return pair(self.items[place], self.items[drawn], group)


def draw_partners(items: Features, labels: Sequence[Hashable], seed: int, where: str) -> Features:
    """Pairs of items with one label; an item that is alone with its label is left out.

    Args:
        items: Inputs of the items, without labels.
        labels: What each belongs to.
        seed: What the draws depend on.
        where: What messages call the data.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    groups = [numbers[label] for label in labels]
    members = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    kept = [index for index, group in enumerate(groups) if len(members[group]) > 1]
    if len({groups[index] for index in kept}) < 2:
        raise DataError(
            f"{where}: {len(numbers)} labels for {len(labels)} items, of which {len({groups[i] for i in kept})} have "
            "two items or more; embeddings learn from items that belong together and others that do not: give pairs, "
            "or labels that repeat"
        )
    return Features(
        [items.stored[index] for index in kept],
        transform=_Drawn(items, kept, groups, dict(members), seed),
    )


def pair(first: Mapping[str, Any], second: Mapping[str, Any], label: float) -> Inputs:
    """The inputs of two items and their label as one."""
    return {**first, **{f"{PARTNER}{name}": value for name, value in second.items()}, "labels": label}


@dataclass(frozen=True)
class PairCollator:
    """Batches of another collator: of pairs, every first item and then every second; other items as they are."""

    collate: Collator

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one batch."""
        if not any(name.startswith(PARTNER) for name in items[0]):
            return self.collate(items)
        firsts = [{name: value for name, value in item.items() if not name.startswith(PARTNER)} for item in items]
        seconds = [
            {name: item.get(f"{PARTNER}{name}", value) for name, value in first.items()}
            for item, first in zip(items, firsts, strict=True)
        ]
        return self.collate([*firsts, *seconds])


def counted_tokens(batch: Mapping[str, Any], *, shifted: bool) -> int:
    """How many tokens of a batch have a label; with `shifted`, position n predicts token n + 1."""
    labels = batch["labels"]
    return max(1, int(((labels[:, 1:] if shifted else labels) != IGNORED).sum()))


def check_predictions(split: str, features: Features, predictions: Any) -> None:
    """Refuse outputs of a model that are not one for each item of a split, or no numbers."""
    for part in predictions if isinstance(predictions, tuple) else (predictions,):
        array = np.asarray(part)
        if len(array) != len(features):
            raise DataError(
                f"{len(array)} predictions for the {len(features)} items of `{split}`; give one for each, in order"
            )
        if np.isnan(array).any():
            row = int(np.flatnonzero(np.isnan(array).reshape(len(array), -1).any(-1))[0])
            raise DataError(
                f"prediction {row} of `{split}` is not a number; lower the learning rate or check the weights"
            )
