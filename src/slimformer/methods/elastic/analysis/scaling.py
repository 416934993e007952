"""The scaling law of MatFormer (arXiv 2310.07707, section 4.1.2): Loss(N, D) = a·(N·D)^b + c."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slimformer.errors import ConfigError
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Exponents that are tried before the best of them is refined; losses fall with N·D.
EXPONENTS = -np.geomspace(1e-3, 4.0, 200)
#: Points of a fitted line.
POINTS = 60


class Run(NamedTuple):
    """One trained model: parameters without embeddings, tokens it saw, and its loss on held-out text."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class ScalingLaw:
    """Loss(N, D) = a·(N·D)^b + c.

    Args:
        a: Factor.
        b: Exponent, below 0.
        c: Loss that no amount of parameters and tokens removes.
        rmse: Root of the mean squared error on the runs it was fitted to.
    """

    a: float
    b: float
    c: float
    rmse: float = 0.0

    def loss(self, parameters: float, tokens: float) -> float:
        """The loss of a model with so many parameters, without embeddings, after so many tokens."""
        return float(self.a * (parameters * tokens) ** self.b + self.c)


def fit_scaling_law(runs: Sequence[Run]) -> ScalingLaw:
    """Fit the law by least squares.

    Given b, the best a and c are those of a straight line, so only b is searched for.

    Args:
        runs: At least three of different N·D.
    """
    from scipy.optimize import minimize_scalar

    products, losses = _checked(runs)
    # In units of the geometric mean, powers stay near 1 whatever is counted.
    unit = math.exp(np.log(products).mean())
    scaled = products / unit

    def squared_error(b: float) -> float:
        return float(((_line(scaled, losses, b) - losses) ** 2).sum())

    errors = [squared_error(b) for b in EXPONENTS]
    best = int(np.argmin(errors))
    around = EXPONENTS[min(best + 1, len(EXPONENTS) - 1)], EXPONENTS[max(best - 1, 0)]
    b = float(minimize_scalar(squared_error, bounds=around, method="bounded", options={"xatol": 1e-10}).x)
    slope, c = _coefficients(scaled, losses, b)
    return ScalingLaw(float(slope * unit**-b), b, float(c), math.sqrt(squared_error(b) / len(losses)))


def scaling_laws(runs: Mapping[str, Sequence[Run]]) -> Finding[dict[str, ScalingLaw]]:
    """Fit a law to each of several groups of runs, such as separately trained models and sizes of one.

    Args:
        runs: Name of a group → its runs.
    """
    data = {name: fit_scaling_law(group) for name, group in runs.items()}
    least = min(run.parameters * run.tokens for group in runs.values() for run in group)
    lines = []
    for name, group in runs.items():
        decades = sorted(math.log10(run.parameters * run.tokens / least) for run in group)
        law = data[name]
        places = np.linspace(decades[0], decades[-1], POINTS).tolist()
        lines.append(Series(f"{name}: fitted", places, [law.loss(least * 10**place, 1) for place in places]))
        measured = sorted((math.log10(run.parameters * run.tokens / least), run.loss) for run in group)
        lines.append(Series(name, [place for place, _ in measured], [loss for _, loss in measured]))
    x_label = f"powers of ten of N·D beyond {least:.2g}"
    return Finding(data, Figure("Scaling law", curves([("loss", lines)], x_label=x_label)))


def _coefficients(products: Any, losses: Any, b: float) -> Any:
    columns = np.stack([products**b, np.ones_like(products)], axis=1)
    return np.linalg.lstsq(columns, losses, rcond=None)[0]


def _line(products: Any, losses: Any, b: float) -> Any:
    slope, c = _coefficients(products, losses, b)
    return slope * products**b + c


def _checked(runs: Sequence[Run]) -> tuple[Any, Any]:
    table = np.array([(run.parameters * run.tokens, run.loss) for run in runs], dtype=np.float64).reshape(-1, 2)
    if not np.isfinite(table).all() or (table[:, 0] <= 0).any():
        raise ConfigError("a run has no finite loss, or no parameters or tokens; leave it out")
    different = len(np.unique(table[:, 0]))
    if different < 3:
        raise ConfigError(f"{different} different N·D cannot tell three constants; give three or more")
    return table[:, 0], table[:, 1]
