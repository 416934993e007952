"""How many parameters and bytes each part of a model holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from slimformer.anatomy.anatomy import Anatomy
    from slimformer.anatomy.matrix import Matrix


@dataclass(frozen=True)
class PartCount:
    """Parameters and bytes of one part; a part of every block is summed over the blocks."""

    part: str
    parameters: int
    bytes: int


@dataclass(frozen=True)
class Census:
    """All parts of a model. Every parameter is counted once, so the parts add up to the model."""

    parts: tuple[PartCount, ...]
    tied: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(part.parameters for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of the whole model's parameters."""
        return sum(part.bytes for part in self.parts)

    @classmethod
    def of(cls, anatomy: Anatomy) -> Census:
        """Count a model; works on the meta device, where nothing is loaded. A slice counts as what it shows."""
        owners = _owners(anatomy)
        order = list(dict.fromkeys([*owners.values(), "other"]))
        # A shared parameter is counted where the forward meets it first, not where it is listed first.
        held = sorted(
            ((_owner(name, owners), parameter, in_use) for name, parameter, in_use in _parameters(anatomy.model)),
            key=lambda pair: order.index(pair[0]),
        )
        seen: set[int] = set()
        counts: dict[str, list[int]] = {}
        tied: list[str] = []
        for part, parameter, in_use in held:
            if id(parameter) in seen:
                tied.append(part)
                continue
            seen.add(id(parameter))
            totals = counts.setdefault(part, [0, 0])
            totals[0] += in_use.numel()
            totals[1] += in_use.numel() * in_use.element_size()
        parts = tuple(PartCount(part, *totals) for part, totals in counts.items())
        return cls(parts, tied=tuple(dict.fromkeys(tied)))


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
    """Names, stored parameters, and what the views on them show."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path, viewed, tensor = name.removesuffix(".original").partition(".parametrizations.")
        yield name, parameter, getattr(model.get_submodule(path), tensor) if viewed else parameter


def _owner(parameter: str, owners: dict[str, str]) -> str:
    """The part that claims a parameter: that of the nearest module above it that belongs to one."""
    path = parameter.rpartition(".")[0]
    while path and path not in owners:
        path = path.rpartition(".")[0]
    return owners.get(path, "other")


def _owners(anatomy: Anatomy) -> dict[str, str]:
    """Path of a module in the whole model → the part it belongs to, in the order of the forward."""
    names = {module: name for name, module in anatomy.model.named_modules()}
    owners: dict[str, str] = {}

    def claim(part: str, *modules: nn.Module | None) -> None:
        for module in modules:
            if module is not None:
                owners.setdefault(names[module], part)

    if anatomy.word_embedding is not None:
        claim("word embedding", anatomy.word_embedding.module)
    claim("patch embedding", anatomy.patch_embedding)
    claim("other embeddings", *anatomy.embeddings)
    for block in anatomy.blocks:
        for part, module in _by_module(block.matrices).items():
            claim(part, module)
        claim("norms", block.attention_norm, block.ffn_norm)
    claim("final norm", anatomy.final_norm)
    if anatomy.pooler is not None:
        claim("pooler", anatomy.pooler.module)
    claim("head", *anatomy.head.values())
    return owners


def _by_module(matrices: dict[str, Matrix]) -> dict[str, nn.Module]:
    """Name each module by the roles it holds: `query`, or `query+key+value` where they are fused."""
    roles: dict[nn.Module, list[str]] = {}
    for role, matrix in matrices.items():
        roles.setdefault(matrix.module, []).append(role)
    return {"+".join(held): module for module, held in roles.items()}
