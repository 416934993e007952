"""The probe: a small fixed batch and what the saved model answered to it.

It is recorded at saving from the reloaded model, on the CPU in float32, and asked again by `load`, `verify` and the
bank. Sums tell that the files are those that were written; the probe tells that they still mean the same
model, with this config, under this version of Transformers.

Where a model rounds activations, the last bit of another machine's arithmetic may turn a value to the next step, and
many others after it. So such a model is asked without rounding too, where a last bit stays one.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, FiniteFloat, JsonValue, ValidationError, model_validator

from slimformer.artifact.manifest import Record, Sha256
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

#: Values kept of each output, spread evenly over it.
SAMPLES = 256
#: Elements an input may have; guards against a forged shape.
MAX_ELEMENTS = 1 << 24
#: Inputs beyond this many values are not written out; give a smaller batch.
MAX_GIVEN = 1 << 16
#: Tokens a row may have; attention takes memory by their square.
MAX_LENGTH = 1 << 10
ROWS, CHOICES, LENGTH, PADDING = 2, 3, 12, 4


class ProbeInput(Record):
    """One tensor of the batch: its values row by row, or the noise of `noise` when there are none."""

    dtype: Literal["int64", "float32", "bool"]
    shape: list[int]
    values: list[int | float] | None = None

    @model_validator(mode="after")
    def _shape_holds_values(self) -> ProbeInput:
        elements = math.prod(self.shape)
        if min(self.shape, default=1) < 1 or elements > MAX_ELEMENTS:
            raise ValueError(f"shape {self.shape} is out of range")
        if self.dtype != "float32" and (elements > MAX_GIVEN or self.shape[-1:] > [MAX_LENGTH]):
            raise ValueError(f"shape {self.shape} has rows of more than {MAX_LENGTH:,} tokens, or too many of them")
        if self.values is not None and len(self.values) != elements:
            raise ValueError(f"{len(self.values)} values do not fill shape {self.shape}")
        if any(abs(value) >= 2**63 for value in self.values or ()):
            raise ValueError("a value is out of range")
        return self

    def tensor(self) -> Tensor:
        """Build the tensor."""
        import torch

        values = noise(math.prod(self.shape)) if self.values is None else torch.tensor(self.values)
        return values.reshape(self.shape).to(getattr(torch, self.dtype))


class ProbeOutput(Record):
    """What the model answered: evenly spaced values of one output, and the shape of all of it."""

    shape: list[int]
    values: list[FiniteFloat]


class Probe(Record):
    """A batch and the model's answer, the content of `probe.json`."""

    inputs: dict[str, ProbeInput]
    outputs: dict[str, ProbeOutput] = Field(min_length=1)
    #: Its answer with activations left alone where it rounds them, and how it does.
    unrounded: dict[str, ProbeOutput] = Field(default_factory=dict)
    rounding: dict[str, JsonValue] | None = None
    #: Sum of `reading.json`, so that it is not exchanged together with what it tells of.
    reading: Sha256 | None = None

    @classmethod
    def record(cls, model: PreTrainedModel, inputs: Mapping[str, ProbeInput]) -> Probe:
        """Ask a model; one that rounds activations is asked without rounding too."""
        rounding = rounding_spec(model)
        unrounded = {} if rounding is None else ask(model, inputs, rounded=False)
        return cls(inputs=dict(inputs), outputs=ask(model, inputs), unrounded=unrounded, rounding=rounding)

    def check(self, model: PreTrainedModel, *, relative: float, absolute: float) -> float:
        """Ask a model the same; raise where it answers otherwise, and return the largest difference.

        Weights are compared by the answers without rounding, and how activations are rounded as it is. Rounded answers
        may lie apart by twice what rounding changes: each lies about that far from the answer without it.
        """
        answer = ask(model, self.inputs)
        slack = {}
        if self.unrounded:
            if (rounding := rounding_spec(model)) != self.rounding:
                raise ArtifactError(f"activations are rounded by {rounding} where {self.rounding} was recorded")
            difference(self.unrounded, ask(model, self.inputs, rounded=False), relative=relative, absolute=absolute)
            for name, output in self.outputs.items():
                slack[name] = 2 * difference({name: output}, self.unrounded, relative=0, absolute=math.inf)
        return difference(self.outputs, answer, relative=relative, absolute=absolute, slack=slack)

    def to_bytes(self) -> bytes:
        """Serialise."""
        absent = {name for name in ("unrounded", "rounding", "reading") if not getattr(self, name)}
        content = self.model_dump(mode="json", exclude=absent)
        return f"{json.dumps(content, sort_keys=True, separators=(',', ':'))}\n".encode()

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Probe:
        """Parse and check."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ArtifactError(
                f"`{source}` is not a probe: `{where}` {first['msg'].lower()}; copy the artifact again"
            ) from error


def noise(count: int) -> Tensor:
    """Spread `count` values over [-1, 1) by integer arithmetic, so that every machine gets the same.

    Value i is (i · 2654435761 mod 2³²) / 2³¹ - 1, rounded to float32.
    """
    import torch

    steps = torch.arange(count, dtype=torch.int64) * 2654435761 % 2**32
    return (steps.double() / 2**31 - 1).float()


def batch_for(model: PreTrainedModel) -> dict[str, ProbeInput]:
    """Derive the batch from the model's config: token sequences, one of them padded, or an image."""
    if model.main_input_name == "pixel_values":
        return _image_batch(model.config)
    return _token_batch(model)


def given_batch(batch: Mapping[str, Tensor]) -> dict[str, ProbeInput]:
    """Write out a batch the caller chose."""
    inputs = {}
    for name, tensor in batch.items():
        if tensor.numel() > MAX_GIVEN:
            raise ArtifactError(
                f"`{name}` of the probe has {tensor.numel():,} values, more than {MAX_GIVEN:,}; give a smaller batch"
            )
        kind = "float32" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        try:
            inputs[name] = ProbeInput.model_validate(
                {"dtype": kind, "shape": list(tensor.shape), "values": tensor.detach().flatten().tolist()}
            )
        except ValidationError as error:
            raise ArtifactError(
                f"`{name}` of the probe cannot be kept: {error.errors()[0]['msg'].lower()}; "
                "give finite int64, float or bool tensors"
            ) from error
    return inputs


def ask(model: PreTrainedModel, inputs: Mapping[str, ProbeInput], *, rounded: bool = True) -> dict[str, ProbeOutput]:
    """Run the batch through `model` in eval mode and sample every output; the model is left as it was."""
    import torch

    from slimformer.views.rounding import unrounded

    training = [module for module in model.modules() if module.training]
    batch = {name: _place(recorded.tensor(), model) for name, recorded in inputs.items()}
    model.eval()
    try:
        # Seeded for the few models that draw numbers in eval mode too.
        with torch.no_grad(), torch.random.fork_rng(devices=[]), nullcontext() if rounded else unrounded(model):
            torch.manual_seed(0)
            answer: Any = model(**batch, output_hidden_states=True, return_dict=True)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ArtifactError(
            f"the probe batch does not run through `{type(model).__name__}`: {reason}; "
            "check the model, or give `probe` a small batch that fits it"
        ) from error
    finally:
        for module in training:
            module.training = True
    return {name: sampled(name, tensor) for name, tensor in _float_outputs(answer).items()}


def rounding_spec(model: PreTrainedModel) -> dict[str, Any] | None:
    """How a model rounds activations; None where it does not."""
    from slimformer.views import rounding_of

    rounding = rounding_of(model) if getattr(model, "is_quantized", False) else None
    return None if rounding is None else rounding.spec()


def difference(
    expected: Mapping[str, ProbeOutput],
    found: Mapping[str, ProbeOutput],
    *,
    relative: float,
    absolute: float,
    slack: Mapping[str, float] | None = None,
) -> float:
    """Return the largest difference of two answers; raise when it exceeds the tolerance.

    Allowed is `absolute` plus `relative` times the largest expected value of that output, and its `slack`, if any.
    """
    worst = 0.0
    for name, wanted in expected.items():
        got = found.get(name)
        if got is None or got.shape != wanted.shape or len(got.values) != len(wanted.values):
            seen = "is missing" if got is None else f"has shape {got.shape}"
            raise ArtifactError(f"output `{name}` {seen} where shape {wanted.shape} was recorded at saving")
        scale = max((abs(value) for value in wanted.values), default=0.0)
        allowed = absolute + relative * scale + (slack or {}).get(name, 0.0)
        for value, now in zip(wanted.values, got.values, strict=True):
            apart = abs(value - now)
            # Written so that nan, which compares with nothing, is never within what is allowed.
            if not apart <= allowed:
                raise ArtifactError(f"output `{name}` differs by {apart:.3g} where {allowed:.3g} is allowed")
            worst = max(worst, apart)
    return worst


def _image_batch(config: Any) -> dict[str, ProbeInput]:
    side = config.image_size
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(config, "num_channels", 3)
    batch = {"pixel_values": ProbeInput(dtype="float32", shape=[1, channels, height, width])}
    if config.model_type == "vit_mae":
        # It hides random patches in eval mode too, unless it is told the order.
        patches = (height // config.patch_size) * (width // config.patch_size)
        batch["noise"] = ProbeInput(dtype="float32", shape=[1, patches])
    return batch


def _token_batch(model: PreTrainedModel) -> dict[str, ProbeInput]:
    import torch

    from slimformer.tasks.kinds import input_axes

    config: Any = model.config
    table: Any = model.get_input_embeddings()
    vocabulary = int(table.weight.shape[0])
    padding: Any = getattr(config, "pad_token_id", None)
    padded = padding is not None and 0 <= padding < vocabulary
    # RoBERTa numbers positions from 2 on, hence the room.
    length = max(1, min(LENGTH, (getattr(config, "max_position_embeddings", None) or 512) - 2))
    # Classifiers on decoders take several rows only when they know the padding.
    rows = ROWS if padded else 1
    choices = CHOICES if "choices" in input_axes(type(model).__name__) else 1

    ids = ((noise(rows * choices * length).double() + 1) / 2 * vocabulary).long().reshape(-1, length)
    mask = torch.ones_like(ids)
    if padded:
        ids[ids == padding] = (padding + 1) % vocabulary
        if length > PADDING:
            ids[-1, -PADDING:], mask[-1, -PADDING:] = padding, 0
    shape = [rows, choices, length] if choices > 1 else [rows, length]
    return {
        name: ProbeInput(dtype="int64", shape=shape, values=tensor.flatten().tolist())
        for name, tensor in {"input_ids": ids, "attention_mask": mask}.items()
    }


def _place(tensor: Tensor, model: PreTrainedModel) -> Tensor:
    return tensor.to(model.device, model.dtype) if tensor.is_floating_point() else tensor.to(model.device)


def _float_outputs(answer: Any) -> dict[str, Tensor]:
    import torch

    outputs = {name: value for name, value in answer.items() if isinstance(value, torch.Tensor)}
    # A head that is still zero answers zero whatever stands below it; the hidden states do not.
    hidden = answer.get("hidden_states")
    if hidden:
        outputs.setdefault("last_hidden_state", hidden[-1])
    return {name: value for name, value in outputs.items() if value.is_floating_point()}


def sampled(name: str, tensor: Tensor) -> ProbeOutput:
    """Evenly spaced values of a tensor; nan or infinity in it is an error."""
    import torch

    flat = tensor.detach().float().cpu().flatten()
    if not torch.isfinite(flat).all():
        bad = int((~torch.isfinite(flat)).sum())
        raise ArtifactError(
            f"the model gives nan or infinity in {bad} of {flat.numel()} values of `{name}`; "
            "it has diverged, train it again with a lower learning rate"
        )
    places = torch.arange(min(SAMPLES, flat.numel())) * flat.numel() // max(1, min(SAMPLES, flat.numel()))
    # Seven digits are what float32 has.
    return ProbeOutput(shape=list(tensor.shape), values=[float(f"{value:.7g}") for value in flat[places].tolist()])
