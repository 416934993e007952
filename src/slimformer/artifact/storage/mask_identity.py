"""What makes a base the base of a mask: the tensors the mask takes from it, and what they compute.

Tensors are known by their names inside the bare base and by their values in float32, so that it does not matter under
which head, with or without a pooler, or in which files they were saved. What a config changes (an activation, an
epsilon, the number of heads) shows in no tensor; so the bare base was asked a small batch. What may hardly show in
its outputs was asked alone: its norms, its activations, and how many heads there are, which changes next to nothing
while attention is uniform.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field, JsonValue

from slimformer import models
from slimformer.artifact.manifest import Record, Sha256
from slimformer.artifact.probe import ProbeInput, ProbeOutput, ask, batch_for, difference, noise, rounding_spec
from slimformer.artifact.provenance import tensor_digest
from slimformer.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn
    from transformers import PreTrainedModel

Cast = Literal["float32", "bfloat16", "float16"]
CASTS: tuple[Cast, ...] = ("float32", "bfloat16", "float16")
#: Values kept of the hidden states; a quarter of those of `probe.json`.
EVERY = 4
#: How faint the input of a norm is, so that its epsilon counts; how wide that of an activation, to reach its bends.
FAINT, WIDE = 1e-3, 3.0
POINTS = 16
#: How far the answers may lie apart: a whole base adds up what a single norm or activation does not.
TOLERANCES = {
    "heads": (0.0, 0.0),
    "activations": (1e-5, 1e-6),
    "norms": (1e-5, 1e-6),
    "last_hidden_state": (1e-4, 1e-5),
}


class Traits(Record):
    """A base in one precision: the values of its tensors, and its answers."""

    tensors: Sha256 = Field(description="hash of the names and values of the tensors the mask takes")
    outputs: dict[str, ProbeOutput] = Field(description="what it answered, computed in float32")


class BaseIdentity(Record):
    """The base of a mask, as it was and as it would be if its weights were cast."""

    inputs: dict[str, ProbeInput] = Field(description="what the bare base was asked")
    traits: dict[Cast, Traits] = Field(description="precision → what the base is in it")
    rounding: dict[str, JsonValue] | None = Field(
        None, description="how its activations are rounded, which its answers leave out"
    )

    @classmethod
    def of(cls, base: str | Path, names: Iterable[str], architecture: type[PreTrainedModel]) -> BaseIdentity:
        """Describe a base by what a mask takes of it.

        Args:
            base: An alias, a folder or a Hub name.
            names: What the mask's model calls the tensors it takes.
            architecture: The class of the mask's model.
        """
        model = _load(base)
        inputs, taken = batch_for(cast("PreTrainedModel", model.base_model)), list(names)
        traits = {precision: _traits(_rounded(model, precision), taken, architecture, inputs) for precision in CASTS}
        return cls(inputs=inputs, traits=traits, rounding=rounding_spec(model))

    def check(
        self, base: str | Path, names: Iterable[str], architecture: type[PreTrainedModel], *, allow_cast: bool
    ) -> None:
        """Raise with the reason, a clause about the base, where it is another one.

        Args:
            base: What is to be the base.
            names: What the mask's model calls the tensors it takes.
            architecture: The class of the mask's model.
            allow_cast: Whether weights that were cast will do.
        """
        model = _load(base)
        now = _traits(model, list(names), architecture, self.inputs)
        precision = next((name for name, traits in self.traits.items() if traits.tensors == now.tensors), None)
        if precision is None:
            recorded = self.traits["float32"].tensors
            raise ArtifactError(f"the fingerprint of its weights is {now.tensors[:12]}… and was {recorded[:12]}…")
        if precision != "float32" and not allow_cast:
            raise ArtifactError(
                f"its weights are cast to {precision}, which changes answers a little and has to be allowed with "
                "`--cast-base` (`cast_base=True`)"
            )
        if (rounding := rounding_spec(model)) != self.rounding:
            raise ArtifactError(f"its activations are rounded by {rounding} and were by {self.rounding}")
        _check_answers(self.traits[precision].outputs, now.outputs)


def _check_answers(recorded: Mapping[str, ProbeOutput], now: Mapping[str, ProbeOutput]) -> None:
    if recorded.keys() != TOLERANCES.keys():
        raise ArtifactError(
            f"the mask does not say what it answered to {', '.join(TOLERANCES.keys() - recorded.keys())}"
        )
    for name, (relative, absolute) in TOLERANCES.items():
        try:
            difference({name: recorded[name]}, now, relative=relative, absolute=absolute)
        except ArtifactError as error:
            raise ArtifactError(
                f"it has the right weights and computes something else with them, as with another activation, epsilon "
                f"or number of heads in config.json: {error.reason}"
            ) from error


def _load(base: str | Path) -> PreTrainedModel:
    """A base as its own folder describes it."""
    import torch

    from slimformer.artifact.converting.packed_base import load_under

    with torch.random.fork_rng(devices=[]):
        return load_under(base, models.stored_class(models.load_config(base), str(base)))


def _rounded(model: PreTrainedModel, precision: Cast) -> PreTrainedModel:
    """A model whose weights have been in a precision, in float32 again."""
    import torch

    if precision == "float32":
        return model
    rounded = copy.deepcopy(model)
    # Transformers leaves some weights of T5 in float32 where float16 is asked for.
    exempt = set(getattr(model, "_keep_in_fp32_modules", None) or ()) if precision == "float16" else set()
    with torch.no_grad():
        for name, tensor in rounded.state_dict().items():
            if tensor.is_floating_point() and exempt.isdisjoint(name.split(".")):
                tensor.copy_(tensor.to(getattr(torch, precision)))
    return rounded


def _traits(
    model: PreTrainedModel, names: list[str], architecture: type[PreTrainedModel], inputs: Mapping[str, ProbeInput]
) -> Traits:
    return Traits(tensors=_sum(model, names, architecture), outputs=_answers(model.base_model, inputs))


def _sum(model: PreTrainedModel, names: list[str], architecture: type[PreTrainedModel]) -> str:
    inside: dict[str, str] = dict(_digests(model.base_model.state_dict()))
    own: dict[str, str] = dict(_digests(model.state_dict()))
    of_base, total = set(inside.values()), hashlib.sha256()
    prefix = f"{architecture.base_model_prefix}."
    lines = []
    for name in names:
        inner = name.removeprefix(prefix)
        digest = inside.get(inner)
        if digest is None:
            # The same weight under a second name, as a tied head has it, may be stored or not.
            digest = own.get(name)
            digest = None if digest in of_base else digest
        if digest is not None:
            lines.append(f"{len(inner)} {inner} {digest}\n")
    total.update("".join(sorted(lines)).encode())
    return total.hexdigest()


def _digests(state: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Names and digests; numbers of positions are left out, which old checkpoints store and new ones do not."""
    return ((name, tensor_digest(tensor)) for name, tensor in state.items() if tensor.is_floating_point())


def _answers(bare: Any, inputs: Mapping[str, ProbeInput]) -> dict[str, ProbeOutput]:
    import torch

    from slimformer.anatomy import Anatomy

    # Rounded answers may lie further apart than is allowed: a value in the middle of two steps goes either way.
    hidden = ask(bare, inputs, rounded=False)["last_hidden_state"]
    heads = [[block.heads, block.key_value_heads, block.head_width] for block in Anatomy.of(bare).blocks]
    with torch.no_grad():
        norms = [
            module((FAINT * noise(module.weight.numel()))[None, None]).abs().max()
            for module in _parts(bare)
            if _is_norm(module)
        ]
        activations = [module(WIDE * noise(POINTS)) for module in _different(_parts(bare)) if _is_activation(module)]
    return {
        "heads": _collected(torch.tensor(heads)),
        "activations": _collected(torch.cat(activations) if activations else torch.zeros(0)),
        "norms": _collected(torch.tensor(norms)),
        "last_hidden_state": ProbeOutput(shape=hidden.shape, values=hidden.values[::EVERY]),
    }


def _parts(model: nn.Module) -> Iterator[Any]:
    """The modules that every form of a base has; a pooler is there or not."""
    return (module for path, module in model.named_modules() if "pooler" not in path)


def _is_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return type(module).__name__.endswith(("LayerNorm", "RMSNorm")) and weight is not None and weight.dim() == 1


def _is_activation(module: Any) -> bool:
    return type(module).__module__ in ("transformers.activations", "torch.nn.modules.activation")


def _different(modules: Iterable[Any]) -> Iterable[Any]:
    """One of each sort."""
    return {f"{type(module).__name__} {module}": module for module in modules}.values()


def _collected(values: Tensor) -> ProbeOutput:
    flat = [float(f"{value:.7g}") for value in values.flatten().tolist()]
    return ProbeOutput(shape=list(values.shape), values=flat)
