"""A weight that stays packed and is a tensor none the less: of the shape and type of the float weight it stands for.

Models, Transformers and torch find a parameter where they look for one. What multiplies with it or looks rows up in it
by an operator reads its codes; whatever else is done with it is done with the float weight, which is made for that and
forgotten. It is not changed in place. Elsewhere than on the CPU it holds the float weight instead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from slimformer.errors import FormatError
from slimformer.operators.panels import Panels
from slimformer.operators.registered import decoded
from slimformer.runtime.checkpoint import rule_of

if TYPE_CHECKING:
    from slimformer.formats import PackedWeight
    from slimformer.operators.registered import Weight

_ATEN = torch.ops.aten
_UNCHANGED = (
    "a packed weight is not changed in place; make floats of the model's weights with "
    "`slimformer.operators.expand(model)` first, or change them before they are quantized"
)


@dataclass(frozen=True)
class Form:
    """What a packed tensor is besides its bytes.

    Args:
        rows: Rows of the codes.
        columns: Columns of the codes.
        rule: The layout they had in a file, as the kernels are told of it.
        group: Columns that share a scale.
        transposed: Whether the module holds the weight as [in, out].
    """

    rows: int
    columns: int
    rule: tuple[int, ...]
    group: int
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape the module expects."""
        return (self.columns, self.rows) if self.transposed else (self.rows, self.columns)


class PackedTensor(Tensor):
    """A packed weight in the place of a float one.

    Args:
        panels: The codes, in the order of the kernels.
        scales: Their scales.
        form: What else there is to know.
        dtype: The type of the float weight it stands for.
        expanded: That weight, where it is elsewhere than on the CPU.
    """

    panels: Tensor
    scales: Tensor
    form: Form
    expanded: Tensor | None

    @staticmethod
    def __new__(
        cls, panels: Tensor, scales: Tensor, form: Form, dtype: torch.dtype, expanded: Tensor | None = None
    ) -> PackedTensor:
        """A tensor without memory of its own, of the shape and type of the float weight."""
        device = panels.device if expanded is None else expanded.device
        made: PackedTensor = torch.Tensor._make_wrapper_subclass(cls, form.shape, dtype=dtype, device=device)
        return made

    def __init__(
        self, panels: Tensor, scales: Tensor, form: Form, dtype: torch.dtype, expanded: Tensor | None = None
    ) -> None:
        self.panels = panels
        self.scales = scales
        self.form = form
        self.expanded = expanded

    @classmethod
    def of(cls, panels: Panels, transposed: bool, dtype: torch.dtype) -> PackedTensor:
        """A weight that is laid out for the kernels."""
        _, _, rows, columns, rule, group = panels.weight
        return cls(panels.panels, panels.scales, Form(rows, columns, tuple(rule), group, transposed), dtype)

    @property
    def weight(self) -> Weight:
        """The arguments of an operator."""
        form = self.form
        return self.panels, self.scales, form.rows, form.columns, list(form.rule), form.group

    @property
    def held_bytes(self) -> int:
        """Bytes that it takes in memory."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    def dequantize(self) -> Tensor:
        """The float weight it stands for."""
        if self.expanded is not None:
            return self.expanded
        weight = decoded(self.weight)
        return (weight.mT.contiguous() if self.form.transposed else weight).to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """`x W^T + bias` with each token of `x` rounded to int8."""
        y: Tensor = torch.ops.slimformer.linear(x, *self.weight, bias)
        return y

    def packed_like(self, noted: PackedWeight) -> PackedWeight:
        """What it is packed as: the kind of weight that was noted, with the codes and scales that it has now.

        Raises:
            FormatError: Where it is of another kind.
        """
        form, rule, group = self.form, rule_of(noted.layout), noted.group_size or noted.columns
        here = (form.rule, form.columns, form.group, form.transposed)
        if here != (tuple(rule), noted.columns, group, noted.transposed):
            raise FormatError(
                f"{self!r} is packed in another way than the weight that was loaded in its place; "
                "load the model that it belongs to instead"
            )
        panels = Panels(self.panels, self.scales, form.rows, form.columns, form.group, noted.layout)
        scales = self.scales[:, : form.rows].mT
        shared = len(noted.scales) == 1 and torch.equal(scales, scales[:1].expand_as(scales))
        return replace(noted, held=panels, scales=(scales[:1] if shared else scales).contiguous())

    @property
    def data(self) -> Tensor:
        """The same weight without a gradient; another one is not set."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        raise FormatError(_UNCHANGED)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise FormatError(_UNCHANGED)

    def share_memory_(self) -> PackedTensor:
        """Move it to memory that processes share."""
        for part in self._parts():
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether processes share its memory."""
        return all(part.is_shared() for part in self._parts())

    def _parts(self) -> list[Tensor]:
        return [self.panels, self.scales, *([] if self.expanded is None else [self.expanded])]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        form = self.form
        return f"PackedTensor({list(form.shape)}, dtype={self.dtype}, codes={form.rule[0]}, group={form.group})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        parts = ["panels", "scales"] + ([] if self.expanded is None else ["expanded"])
        return parts, (self.form, self.dtype)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: Any, size: Any, stride: Any) -> PackedTensor:
        form, dtype = context
        return PackedTensor(parts["panels"], parts["scales"], form, dtype, parts.get("expanded"))

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedTensor:
        if id(self) in memo:
            already: PackedTensor = memo[id(self)]
            return already
        panels, scales = copy.deepcopy(self.panels, memo), copy.deepcopy(self.scales, memo)
        copied = PackedTensor(panels, scales, self.form, self.dtype, copy.deepcopy(self.expanded, memo))
        memo[id(self)] = copied
        return _marked(copied, _marks(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (self.panels, self.scales, self.form, self.dtype, self.expanded, _marks(self))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func in _OWN:
            return _OWN[func](*args, **kwargs)
        if func._schema.is_mutable and any(isinstance(each, PackedTensor) for each in _written(func, args, kwargs)):
            raise FormatError(_UNCHANGED)
        args, kwargs = tree_map_only(PackedTensor, PackedTensor.dequantize, (args, kwargs))
        return func(*args, **kwargs)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """What an operator of torch writes to; of lists, what they hold."""
    written: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written += value if isinstance(value, list | tuple) else [value]
    return written


#: What one packed tensor has beyond another: that it is a parameter, what Transformers notes of it.
def _marks(tensor: PackedTensor) -> dict[str, Any]:
    own = ("panels", "scales", "form", "expanded")
    return {"requires_grad": tensor.requires_grad} | {
        name: value for name, value in tensor.__dict__.items() if name not in own
    }


def _marked(tensor: PackedTensor, marks: dict[str, Any]) -> PackedTensor:
    tensor.requires_grad_(marks["requires_grad"])
    tensor.__dict__.update({name: value for name, value in marks.items() if name != "requires_grad"})
    return tensor


def _rebuilt(
    panels: Tensor, scales: Tensor, form: Form, dtype: torch.dtype, expanded: Tensor | None, marks: dict[str, Any]
) -> Tensor:
    """What was saved, on the device it is loaded to, which need not be the one it was on."""
    place = (panels if expanded is None else expanded).device
    if panels.is_meta or place.type == "meta":  # there are no codes to go by
        shape = torch.empty(form.shape, dtype=dtype, device="meta")
        return nn.Parameter(shape, marks["requires_grad"]) if marks.get("_is_param") else shape
    packed = PackedTensor(panels.cpu(), scales.cpu(), form, dtype)
    if place.type != "cpu":
        packed = PackedTensor(
            packed.panels, packed.scales, form, dtype, packed.dequantize().to(place) if expanded is None else expanded
        )
    return _marked(packed, marks)


def _same(tensor: PackedTensor, *_: Any, **__: Any) -> PackedTensor:
    return PackedTensor(tensor.panels, tensor.scales, tensor.form, tensor.dtype, tensor.expanded)


def _clone(tensor: PackedTensor, **_: Any) -> PackedTensor:
    expanded = None if tensor.expanded is None else tensor.expanded.clone()
    return PackedTensor(tensor.panels.clone(), tensor.scales.clone(), tensor.form, tensor.dtype, expanded)


def _to(tensor: PackedTensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    kind, place = dtype or tensor.dtype, torch.device(device or tensor.device)
    if not kind.is_floating_point or place.type == "meta":
        return tensor.dequantize().to(place, kind)
    expanded = None if place.type == "cpu" else tensor.dequantize().to(place, kind)
    return PackedTensor(tensor.panels, tensor.scales, tensor.form, kind, expanded)


def _copy_from(tensor: Tensor, source: Tensor, *rest: Any, **settings: Any) -> Tensor:
    """Into a float tensor goes the float weight; into a packed one only what is packed likewise."""
    if not isinstance(tensor, PackedTensor):
        plain = source.dequantize() if isinstance(source, PackedTensor) else source
        copied: Tensor = _ATEN.copy_.default(tensor, plain, *rest, **settings)
        return copied
    if not isinstance(source, PackedTensor) or source.form != tensor.form or tensor.expanded is not None:
        raise FormatError(
            "a packed weight takes the values of one that is packed likewise, and no others; "
            "`slimformer.operators.expand(model)` makes floats of a model's weights"
        )
    tensor.panels.copy_(source.panels)
    tensor.scales.copy_(source.scales)
    return tensor


def _look_up(tensor: PackedTensor, ids: Tensor, *_: Any) -> Tensor:
    if tensor.expanded is not None or tensor.form.transposed or ids.device.type != "cpu":
        looked_up: Tensor = _ATEN.embedding.default(tensor.dequantize(), ids)
        return looked_up
    rows: Tensor = torch.ops.slimformer.embedding(ids, *tensor.weight)
    return rows.to(tensor.dtype)


_OWN: dict[Any, Any] = {
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.clone.default: _clone,
    _ATEN._to_copy.default: _to,
    _ATEN.copy_.default: _copy_from,
    _ATEN.embedding.default: _look_up,
}
# So that `torch.load` reads states with such tensors where it reads nothing that is not known.
torch.serialization.add_safe_globals([_rebuilt, Form])
