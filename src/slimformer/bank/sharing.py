"""Models that share their weights, and layers that compute with another weight than they hold."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from slimformer.artifact.converting.packed_base import round_as
from slimformer.errors import ArtifactError
from slimformer.operators import expand
from slimformer.views.snapshot import clone

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig, PreTrainedModel

    #: Makes a weight of another one, in the tensor given.
    Shown = Callable[[Tensor, Tensor], Tensor]


class SharedBase:
    """The one copy of a base's tensors, and models of any head built around them.

    Args:
        model: The base, as it is stored, in eval mode; packed weights become floats.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = cast("PreTrainedModel", expand(model)).requires_grad_(False)
        self.bare = cast("PreTrainedModel", model.base_model)
        self._own = _tensors(model)
        self._of_bare = _tensors(self.bare)

    @property
    def names(self) -> frozenset[str]:
        """Names of the bare base's tensors."""
        return frozenset(self._of_bare)

    @property
    def bytes(self) -> int:
        """What the tensors take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._own.values())

    def lacks(self, model: nn.Module) -> int:
        """Bytes of a model's tensors that are not this base's."""
        shared = {tensor.data_ptr() for tensor in self._own.values()}
        return sum(
            tensor.numel() * tensor.element_size()
            for tensor in _tensors(model).values()
            if tensor.data_ptr() not in shared
        )

    def under(self, architecture: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
        """A model of a class on this base: no tensor is copied, and those the base lacks are on the meta device."""
        import torch

        with torch.device("meta"):
            model = architecture(config)
        prefix = f"{architecture.base_model_prefix}."
        for name, lacking in _tensors(model).items():
            tensor = self._of_bare.get(name.removeprefix(prefix)) if name.startswith(prefix) else self._own.get(name)
            if tensor is not None and tensor.shape == lacking.shape:
                put(model, name, tensor)
        built: PreTrainedModel = model.eval()
        if getattr(self.model, "is_quantized", False):
            round_as(built, self.model)
        return built


class Sealed:
    """A model whose tensors are shared, and whether one of them was changed in place since.

    PyTorch counts the changes of a memory through whichever tensor they are made; only what is written through `.data`
    goes uncounted.

    Args:
        model: The model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        # Tensors made in inference mode are not counted, and cannot be changed outside of it.
        self._versions = [
            (name, tensor, tensor._version) for name, tensor in _tensors(model).items() if not tensor.is_inference()
        ]

    @property
    def model(self) -> PreTrainedModel:
        """The model, if it is as it was."""
        for name, tensor, version in self._versions:
            if tensor._version != version:
                raise ArtifactError(
                    f"`{name}`, which models of the bank share, was changed in place, and answers with it; make the "
                    "bank anew, and change nothing but a `copy.deepcopy` of what `use` returns"
                )
        return self._model


def apart(model: nn.Module) -> Any:
    """A copy that shares the memory of every tensor and has parameters of its own: casting it casts no other model."""
    copied: nn.Module = clone(model)
    parameters: dict[int, nn.Parameter] = {}
    for module in copied.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                own = parameters.setdefault(id(parameter), nn.Parameter(parameter.detach(), requires_grad=False))
                module._parameters[name] = own
    return copied


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Set one parameter or buffer of a model to a tensor, as it is."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if last in module._parameters:
        plain = isinstance(tensor, nn.Parameter)
        module._parameters[last] = tensor if plain else nn.Parameter(tensor, requires_grad=False)  # type: ignore[assignment]
    else:
        module._buffers[last] = tensor


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, those included that are not saved and those that are tied."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return {**found, **dict(model.named_buffers(remove_duplicate=False))}


_SHOWN = "_slimformer_shown"
_thread = threading.local()
_classes: dict[Any, type[nn.Module]] = {}


def showing(module: nn.Module, shown: Shown) -> nn.Module:
    """A copy of a layer that shares its tensors and computes with what `shown` makes of its weight.

    Its forward is the layer's own, so it computes what the layer with that weight would; and that weight is what it
    puts into a state dict.
    """
    copied: nn.Module = clone(module)
    copied.__dict__[_SHOWN] = shown
    copied.__class__ = _class(type(module))
    return copied


def scratch(like: Tensor) -> Tensor:
    """A place to compute a weight in, of this thread alone and good until it asks for the next.

    Memory that is taken anew for every weight costs several times what the computing does.
    """
    places: dict[tuple[torch.dtype, torch.device], Tensor] = _thread.__dict__.setdefault("places", {})
    key = (like.dtype, like.device)
    if key not in places or places[key].numel() < like.numel():
        with torch.inference_mode(False):
            places[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return places[key][: like.numel()].view(like.shape)


def _class(kind: type[nn.Module]) -> type[nn.Module]:
    return _classes.get(kind) or _classes.setdefault(kind, _make_class(kind))


def _make_class(kind: type[nn.Module]) -> type[nn.Module]:
    def weight(self: Any) -> Tensor:
        stored = self._parameters["weight"]
        # During the layer's own forward the weight is used at once; whoever else asks gets one to keep.
        place = scratch(stored) if _thread.__dict__.get("running") is self else torch.empty_like(stored)
        made: Tensor = self.__dict__[_SHOWN](stored, place)
        return made

    def forward(self: Any, *inputs: Any) -> Any:
        _thread.running = self
        try:
            return kind.forward(self, *inputs)
        finally:
            _thread.running = None

    def save(self: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        kind._save_to_state_dict(self, destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight.detach()

    own = {"weight": property(weight), "forward": forward, "_save_to_state_dict": save}
    return type(f"Showing{kind.__name__}", (kind,), own)
