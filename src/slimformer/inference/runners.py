"""Running a model over inputs, batch by batch: arrays in, arrays out, whatever computes in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slimformer.counts import check_threads
from slimformer.errors import CheckpointError, UsageError, describe
from slimformer.tasks.features import as_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from slimformer.sizes import Elastic
    from slimformer.sizes.naming import Sized
    from slimformer.tasks.features import Collator, Features
    from slimformer.tasks.kinds.kind import Kind

Array: TypeAlias = np.ndarray[Any, Any]
#: A batch of NumPy arrays in, what `Kind.outputs` leaves of the outputs out, in NumPy again.
Runner: TypeAlias = Callable[[dict[str, Array]], Mapping[str, Array]]

#: What stands in places of the outputs that belong to padding.
PADDING = -100.0


def run(features: Features, collate: Collator, runner: Runner, batch_size: int) -> dict[str, Array]:
    """The outputs for every item in order.

    Items run in the order of their length, which spares most of the padding. A runner may say that it takes fewer of
    them at a time, by its `most`.
    """
    batch_size = min(batch_size, getattr(runner, "most", None) or batch_size)
    order = np.argsort([-length for length in features.lengths], kind="stable").tolist()
    batches = [
        runner(collate([features[index] for index in order[start : start + batch_size]]))
        for start in range(0, len(order), batch_size)
    ]
    back = np.argsort(order)
    return {name: join([batch[name] for batch in batches])[back] for name in batches[0]}


def join(parts: Sequence[Array]) -> Array:
    """Put batches together; sequences of different lengths are filled up at the end."""
    if parts[0].ndim < 2 or len({part.shape[1] for part in parts}) == 1:
        return np.concatenate(parts)
    longest = max(part.shape[1] for part in parts)
    pads = [[(0, 0), (0, longest - part.shape[1]), *[(0, 0)] * (part.ndim - 2)] for part in parts]
    filled = [np.pad(part, pad, constant_values=PADDING) for part, pad in zip(parts, pads, strict=True)]
    return np.concatenate(filled)


def as_array(value: Any) -> Array:
    """A tensor or an array as an array, floats in float32."""
    return value if isinstance(value, np.ndarray) else value.float().cpu().numpy()


class TorchRunner:
    """Runs a model in torch.

    Args:
        model: The model, in eval mode.
        kind: What it has to do.
    """

    def __init__(self, model: Any, kind: Kind) -> None:
        self.model = model
        self.kind = kind
        self.device = next(model.parameters()).device

    @property
    def weights(self) -> list[Tensor]:
        """The weights of the model."""
        return list(self.model.parameters())

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Run one batch; labels in it only serve to reduce the outputs."""
        import torch

        tensors = {name: tensor.to(self.device) for name, tensor in as_tensors(batch).items()}
        inputs = {name: tensor for name, tensor in tensors.items() if name not in self.kind.targets}
        with torch.inference_mode():
            outputs = self.kind.outputs(self.model(**inputs), tensors)
            return {name: as_array(value) for name, value in outputs.items()}


class SizedRunner:
    """Runs an elastic model at one size; runners of other sizes share its weights and may run at the same time.

    Args:
        runner: What runs the model, at whatever size is in use.
        elastic: The sizes of that model.
        size: Which of them.
    """

    def __init__(self, runner: Runner, elastic: Elastic, size: Sized) -> None:
        self.runner = runner
        self.elastic = elastic
        self.allocation = elastic.allocation(size)

    def __call__(self, batch: dict[str, Array]) -> Mapping[str, Array]:
        """Run one batch."""
        with self.elastic.at(self.allocation):
            return self.runner(batch)


class TorchGenerator:
    """Lets a decoder in torch go on with texts, always with the likeliest token.

    Args:
        model: The model, in eval mode.
        kind: What it has to do.
        processor: Its tokenizer.
        draft: Size of an elastic model that drafts for the one in use.
    """

    def __init__(self, model: PreTrainedModel, kind: Kind, processor: Any, draft: str | None = None) -> None:
        from transformers import GenerationConfig

        self.kind = kind
        self.device = next(model.parameters()).device
        self.ends = end_tokens(model, processor)
        pad = processor.pad_token_id
        self.drafting = {} if draft is None else {"draft": draft}
        self.config = GenerationConfig(
            do_sample=False,
            max_new_tokens=kind.new_tokens,
            eos_token_id=self.ends or None,
            pad_token_id=pad if pad is not None else (self.ends[0] if self.ends else 0),
        )
        # Transformers fills up a config with what the model's own says, such as several beams or a penalty, by which
        # the token is not the likeliest. So the model here, which shares all weights, has none of its own.
        self.model: Any = copy.copy(model)
        self.model.generation_config = GenerationConfig()

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Go on with a batch of texts, padded on the left; -1 stands after the end of each."""
        import torch

        tensors = {name: tensor.to(self.device) for name, tensor in as_tensors(batch).items()}
        with torch.inference_mode():
            tokens = self.model.generate(**tensors, generation_config=self.config, **self.drafting)
        added = tokens[:, tensors["input_ids"].shape[1] :].cpu().numpy()
        ended = np.cumsum(np.isin(added, self.ends), axis=1) > 0
        return dict(self.kind.outputs({"sequences": np.where(ended, -1, added)}, batch))


def end_tokens(model: Any, processor: Any) -> list[int]:
    """The tokens that end a text: as the settings for generating tell, else as the tokenizer does."""
    own: Any = model.generation_config
    said: Any = next((each for each in (own and own.eos_token_id, processor.eos_token_id) if each is not None), [])
    ends: list[int] = said if isinstance(said, list) else [said]
    if any(type(end) is not int or end < 0 for end in ends):
        raise CheckpointError(
            f"the settings for generating have `eos_token_id` `{describe(ends)}`, which is no number of a token; mend "
            "generation_config.json, or remove it"
        )
    return ends


@contextmanager
def using_threads(threads: int | None) -> Iterator[int]:
    """Let PyTorch use so many threads of the CPU inside a `with` block; None for as many as it does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(asked_threads(threads))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def asked_threads(asked: int | None) -> int:
    """As many threads as asked for, or as PyTorch uses."""
    import torch

    try:
        return torch.get_num_threads() if asked is None else check_threads(asked)
    except ValueError as error:
        raise UsageError(f"`--threads` is `{asked}`: {error}") from None
