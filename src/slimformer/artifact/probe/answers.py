"""The probe: a small fixed batch and what the saved model answered to it.

It is recorded at saving from the reloaded model, on the CPU in float32, and asked again by `load`, `verify` and the
bank. Sums tell that the files are those that were written; the probe tells that they still mean the same
model, with this config, under this version of Transformers.

Where a model rounds activations, the last bit of another machine's arithmetic may turn a value to the next step, and
many others after it. So such a model is asked without rounding too, where a last bit stays one.

A model with nested sizes is asked at each of them, and what it answers there ties the table of sizes to the weights:
with other shares, sizes or names the answers are others.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from pydantic import Field, FiniteFloat, JsonValue, ValidationError

from slimformer.artifact.layout import PROBE
from slimformer.artifact.manifest import Record, Sha256
from slimformer.artifact.probe.batch import ProbeInput
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

#: Values kept of each output, spread evenly over it.
SAMPLES = 256


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
    #: Sums of files that say what of the weights is the model, for the same reason.
    bound: dict[str, Sha256] = Field(default_factory=dict)
    #: Its answers at each nested size, by the size's name.
    sizes: dict[str, dict[str, ProbeOutput]] = Field(default_factory=dict)

    @classmethod
    def record(cls, model: PreTrainedModel, inputs: Mapping[str, ProbeInput]) -> Probe:
        """Ask a model; one that rounds activations is asked without rounding too."""
        rounding = rounding_spec(model)
        unrounded = {} if rounding is None else ask(model, inputs, rounded=False)
        return cls(
            inputs=dict(inputs),
            outputs=ask(model, inputs),
            unrounded=unrounded,
            rounding=rounding,
            sizes=ask_sizes(model, inputs),
        )

    def check(self, model: PreTrainedModel, *, relative: float, absolute: float) -> float:
        """Ask a model the same; raise where it answers otherwise, and return the largest difference.

        Weights are compared by the answers without rounding, and how activations are rounded as it is. Rounded answers
        may lie apart by twice what rounding changes: each lies about that far from the answer without it.
        """
        answer = ask(model, self.inputs)
        if self.unrounded:
            if (rounding := rounding_spec(model)) != self.rounding:
                raise ArtifactError(f"activations are rounded by {rounding} where {self.rounding} was recorded")
            difference(self.unrounded, ask(model, self.inputs, rounded=False), relative=relative, absolute=absolute)
        largest = difference(self.outputs, answer, relative=relative, absolute=absolute, slack=self.slack())
        return max(largest, self._check_sizes(model, relative, absolute))

    def slack(self) -> dict[str, float]:
        """How much further apart rounded answers may lie, by output; empty where nothing is rounded."""
        if not self.unrounded:
            return {}
        return {
            name: 2 * difference({name: output}, self.unrounded, relative=0, absolute=math.inf)
            for name, output in self.outputs.items()
        }

    def _check_sizes(self, model: PreTrainedModel, relative: float, absolute: float) -> float:
        """Compare the answers at every size; earlier artifacts recorded none."""
        if not self.sizes:
            return 0.0
        sizes = ask_sizes(model, self.inputs)
        if sizes.keys() != self.sizes.keys():
            raise ArtifactError(
                f"the sizes are {', '.join(sizes) or 'none'} where {', '.join(self.sizes)} were recorded at saving"
            )
        worst = 0.0
        for name, recorded in self.sizes.items():
            try:
                worst = max(worst, difference(recorded, sizes[name], relative=relative, absolute=absolute))
            except ArtifactError as error:
                raise ArtifactError(f"at size `{name}` {error.reason}") from error
        return worst

    def to_bytes(self) -> bytes:
        """Serialise."""
        absent = {name for name in ("unrounded", "rounding", "reading", "bound", "sizes") if not getattr(self, name)}
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


def read_probe(folder: Path) -> Probe:
    """Read the probe of an artifact."""
    path = folder / PROBE
    if not path.is_file():
        raise ArtifactError(f"artifact `{folder}` lacks `{PROBE}`; save it again")
    return Probe.from_bytes(path.read_bytes(), str(path))


def ask(model: PreTrainedModel, inputs: Mapping[str, ProbeInput], *, rounded: bool = True) -> dict[str, ProbeOutput]:
    """Run the batch through `model` in eval mode and sample every output; the model is left as it was."""
    import torch

    from slimformer.views.rounding import in_floats, unrounded

    training = [module for module in model.modules() if module.training]
    batch = {name: _place(recorded.tensor(), model) for name, recorded in inputs.items()}
    model.eval()
    try:
        # Seeded for the few models that draw numbers in eval mode too.
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            in_floats(model) if rounded else unrounded(model),
        ):
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


def ask_sizes(model: PreTrainedModel, inputs: Mapping[str, ProbeInput]) -> dict[str, dict[str, ProbeOutput]]:
    """Ask a model at each of its nested sizes, smallest first; nothing where it has one size only."""
    from slimformer.sizes import Elastic, is_elastic

    answers: dict[str, dict[str, ProbeOutput]] = {}
    for size in Elastic.of(model).sizes if is_elastic(model) else ():
        with Elastic.of(model).at(size):
            answers[size.name] = ask(model, inputs)
    return answers


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


def relative_difference(expected: Mapping[str, ProbeOutput], answer: Mapping[str, ProbeOutput]) -> float:
    """The largest difference of two answers, each output measured by its largest expected value."""
    worst = 0.0
    for name, output in expected.items():
        largest = max((abs(value) for value in output.values), default=0.0)
        apart = difference({name: output}, answer, relative=0, absolute=math.inf)
        worst = max(worst, apart / largest if largest else apart)
    return worst


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
