"""Rounding a matrix column by column, what each column loses made up for in those still to come (GPTQ).

A matrix W meets inputs X, and what counts is the error of its outputs, ‖WX - ŴX‖² = tr((W - Ŵ) H (W - Ŵ)ᵀ) with
H = XXᵀ (arXiv 2210.17323, eq. 1). Everything here is about one matrix and knows of no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slimformer.errors import FormatError

if TYPE_CHECKING:
    from slimformer.formats import Granularity, NumberFormat

#: λ, what is added to the diagonal of H, as a share of its mean (section 3.3, "Step 3").
DAMPING = 0.01
#: Columns whose corrections reach the rest of the matrix at once (section 3.3, "Step 2").
COLUMNS = 128
#: Shares of a format's own scale that are tried: rare large weights may be cut off in favour of all the others.
FACTORS = tuple(step / 20 for step in range(8, 29))


def fit_scales(weight: Tensor, importance: Tensor, number_format: NumberFormat, granularity: Granularity) -> Tensor:
    """The scales, of those around the format's own, that leave the least error in what the columns contribute.

    Args:
        weight: [out, in].
        importance: [in], the mean square of what each column is multiplied by; the diagonal of H.
        number_format: The levels.
        granularity: What shares a scale.

    Returns:
        [out, 1] for rows, [out, groups] for groups, [1, 1] for a matrix.
    """
    units = granularity.fold(weight)
    weights = granularity.fold(importance.expand_as(weight))
    own = number_format.encode(weight, granularity)[1]
    best, least = own, torch.full_like(own, torch.inf)
    for factor in FACTORS:
        scales = own * factor
        values = number_format.decode(number_format.nearest(units, scales), units.dtype) * scales
        error = (values - units).square_().mul_(weights).sum(dim=-1, keepdim=True)
        best, least = best.where(least <= error, scales), least.minimum(error)
    return best if granularity.group_size is None else best.squeeze(-1)


def compensate(
    weight: Tensor, hessian: Tensor, number_format: NumberFormat, granularity: Granularity, damping: float = DAMPING
) -> tuple[Tensor, Tensor]:
    """Codes and scales of a matrix that keep its outputs close on the inputs it was calibrated with.

    Column q is rounded to ŵ_q, and the columns after it take on what that changes in the outputs:
    δ = -(w_q - ŵ_q) / [H⁻¹]_qq · (H⁻¹)_q: (eq. 2). Those rows of H⁻¹, each without the columns before it, are the rows
    of its upper Cholesky factor (section 3.3, "Step 3"). Columns come in the order of their inputs' size, the largest
    first, while there are many others left to make up for them; scales are chosen before and do not depend on it.

    Args:
        weight: [out, in].
        hessian: [in, in], the sum or mean of the outer products of inputs.
        number_format: The levels.
        granularity: What shares a scale.
        damping: What is added to the diagonal, as a share of its mean.

    Returns:
        Codes as int8, of the weight's shape, and scales as `NumberFormat.quantize` gives them.
    """
    rest = weight.detach().to(torch.float32)
    diagonal = hessian.diagonal().to(torch.float32)
    scales = fit_scales(rest, damped_diagonal(diagonal, damping), number_format, granularity)
    spread = granularity.spread(scales, rest.shape[1]).expand_as(rest)
    order = diagonal.argsort(descending=True, stable=True)
    factor = inverse_factor(hessian[order][:, order], damping)
    rest, spread = rest[:, order], spread[:, order]
    codes = torch.empty_like(rest)
    for start in range(0, rest.shape[1], COLUMNS):
        block = slice(start, start + COLUMNS)
        codes[:, block], errors = _round_columns(rest[:, block], spread[:, block], factor[block, block], number_format)
        # eq. 4: the columns beyond the block take on all of its errors at once.
        rest[:, start + COLUMNS :] -= errors @ factor[block, start + COLUMNS :]
    return codes[:, order.argsort()].to(torch.int8), scales.to(weight.dtype)


def _round_columns(rest: Tensor, scales: Tensor, factor: Tensor, number_format: NumberFormat) -> tuple[Tensor, Tensor]:
    """Codes of the columns of a block, rounded one after the other, and their errors over the factor's diagonal.

    The weights in `rest` take on what those before them lose, in place.
    """
    codes, errors = torch.empty_like(rest), torch.empty_like(rest)
    for column in range(rest.shape[1]):
        weights, scale = rest[:, column].clone(), scales[:, column]
        codes[:, column] = number_format.nearest(weights, scale)
        rounded = number_format.decode(codes[:, column], rest.dtype) * scale
        errors[:, column] = (weights - rounded) / factor[column, column]
        rest[:, column:] -= errors[:, column, None] * factor[column, column:]
    return codes, errors


def damped_diagonal(diagonal: Tensor, damping: float) -> Tensor:
    """The mean squares of inputs with a share of their mean added, so that none weighs nothing: [in]."""
    return diagonal + (damping * float(diagonal.mean()) or 1.0)


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """U of H⁻¹ = UᵀU, upper triangular, float32; inputs that never occur count like the rarest ones.

    Args:
        hessian: [in, in].
        damping: What is added to the diagonal, as a share of its mean.

    Raises:
        FormatError: Where it holds NaN or infinity.
    """
    wide = hessian.to(torch.float64)
    mean = float(wide.diagonal().mean())
    if not mean < torch.inf:
        raise FormatError("an input that was recorded holds NaN or infinity; check the model and the texts")
    damped = wide.diagonal_scatter(damped_diagonal(wide.diagonal(), damping))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.to(torch.float32)
