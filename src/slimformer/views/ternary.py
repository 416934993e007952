"""Weights as one of three values, -a, 0 and +a, with a straight-through gradient."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from slimformer.errors import ViewError
from slimformer.views.straight_through import pass_inside
from slimformer.views.view import BELOW_SLICE, View

Per = Literal["matrix", "row"]


def ternarize(weight: Tensor, per: Per = "matrix", clip: float | None = 2.5) -> Tensor:
    """Ternarize a weight, with one scale for the matrix or one for each row.

    With w clipped to ±clip: `Δ = 0.7·mean|w|`, `a = mean(|w| : |w| > Δ)`, and the result is
    `a·sign(w)·[|w| > Δ]`, the quantizer of Ternary Weight Networks as TernaryBERT uses it. Rows of zeros
    stay zeros.

    Args:
        weight: [out, in].
        per: What shares a scale.
        clip: Bound on `|w|`; the gradient is zero where `|w| ≥ clip` and passes unchanged elsewhere.
            None for no bound.
    """
    _check_per(per)
    ternary: Tensor = _Ternarize.apply(weight, per, clip)  # type: ignore[no-untyped-call]
    return ternary


def ternary_codes(weight: Tensor, per: Per = "matrix", clip: float | None = 2.5) -> tuple[Tensor, Tensor]:
    """The two factors of `ternarize`: codes in {-1, 0, 1} as int8, and scales that broadcast to them."""
    _check_per(per)
    clipped = weight if clip is None else weight.clamp(-clip, clip)
    # Sums of half-precision numbers lose too much; everything else keeps its own precision.
    magnitude = clipped.abs().to(torch.promote_types(weight.dtype, torch.float32))
    over = tuple(range(weight.dim())) if per == "matrix" else (-1,)
    chosen = magnitude > 0.7 * magnitude.mean(dim=over, keepdim=True)
    count = chosen.sum(dim=over, keepdim=True).clamp(min=1)
    scale = (magnitude * chosen).sum(dim=over, keepdim=True) / count
    return (clipped.sign() * chosen).to(torch.int8), scale.to(weight.dtype)


class TernaryView(View):
    """Shows a weight ternarized; training goes on in the float weight behind it.

    Args:
        per: One scale per "matrix" (blocks and pooler) or per "row" (word embedding: per token).
        clip: Bound on `|w|`, beyond which no gradient passes.
    """

    kind = "ternary"

    def __init__(self, per: Per = "matrix", clip: float | None = 2.5) -> None:
        super().__init__()
        _check_per(per)
        self.per = per
        self.clip = clip

    def forward(self, weight: Tensor) -> Tensor:
        """Ternarize the weight."""
        return ternarize(weight, self.per, self.clip)

    def spec(self) -> dict[str, Any]:
        """Settings of this view."""
        return {"kind": self.kind, "per": self.per, "clip": self.clip}

    def after(self, earlier: View) -> str | None:
        """A ternary view reads whole rows, so a slice cannot come first."""
        return BELOW_SLICE if earlier.kind == "slice" else super().after(earlier)

    def extra_repr(self) -> str:
        """Show the settings in the model's print-out."""
        return f"per={self.per!r}, clip={self.clip}"


class _Ternarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, per: Per, clip: float | None) -> Tensor:
        codes, scale = ternary_codes(weight, per, clip)
        ctx.clip = clip
        if clip is not None:
            ctx.save_for_backward(weight)
        return codes * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return pass_inside(ctx, gradient), None, None


def _check_per(per: str) -> None:
    if per not in get_args(Per):
        raise ViewError(f"`per` is `{per}`; a ternary scale is shared per `matrix` or per `row`")
