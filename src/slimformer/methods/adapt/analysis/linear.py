"""The linear model of the paper's theory (arXiv 2210.02871, Lemma 1, Theorems 1 and 2), and its bounds on drift.

The model is f(x) = W·φ(x) on n examples. With features Φ = [φ(x₁) … φ(xₙ)] = U·diag(s)·Vᵀ, every stage acts on each
direction uᵢ by itself; gradient descent changes the component W·U alone, and leaves what lies outside the span of Φ.

- Further pre-training gives W₀, the first teacher.
- Round t ≥ 1 minimises ½‖WΦ - Wₜ₋₁Φ‖² + ½λ‖W‖². By Lemma 1, c(t) = WₜU = W₀U·(s² / (s² + λ))ᵗ, and nothing is left
  outside the span: B = ‖W₀(I - UUᵀ)‖² counts in round 0 alone.
- Fine-tuning takes T steps of gradient descent on ½‖WΦ - Y‖² with rate η. With e = (1 - ηs²)^T and the least-norm
  solution q = Y·V·diag(1/s), the component in the span becomes q(1 - e) + c(t)·e.

The theorems bound ‖W_init - W(t, T)‖ by ψ(t) = √(Σ(q²(1 - e)² + c²e²) + 1{t=0}·B) + ‖W_init‖, which falls with t. The
proof loses the cross term 2qc(1 - e)e, so the distance may exceed ψ. With the absolute value of that term a bound is
left that holds and falls: ψ̃(t) = √(Σ(|q|(1 - e) + |c|e)² + 1{t=0}·B) + ‖W_init‖. The distance itself need not fall: a
round also removes what W_init has outside the span, and fine-tuning does not bring it back.

Two things are reconstructed from a summary of the theorems and not compared with the paper's own text: the ridge λ of a
round, and ψ, which is ψ̃ without its cross term.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slimformer.errors import ConfigError
from slimformer.report import Figure, Finding, Series, curves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Rounding that comparisons of float64 norms allow for, as a share of the larger side.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """One linear model with its data and the settings of distillation and fine-tuning; everything in float64.

    Args:
        features: Φ, [width, examples].
        targets: Labels Y of fine-tuning, [outputs, examples].
        start: Weights W_init before anything, [outputs, width].
        teacher: Weights W₀ after further pre-training, [outputs, width].
        ridge: λ of a round, 0 or more; at 0 a round gives the least-norm solution.
        rate: Learning rate η of fine-tuning, at most 1/s² for the largest singular value s of Φ.
        steps: Steps T of fine-tuning.
    """

    features: Array
    targets: Array
    start: Array
    teacher: Array
    ridge: float
    rate: float
    steps: int

    def __post_init__(self) -> None:
        width, examples = self.features.shape
        shapes = {"start": (self.start, width), "teacher": (self.teacher, width), "targets": (self.targets, examples)}
        for name, (array, columns) in shapes.items():
            if array.shape != (len(self.start), columns):
                raise ConfigError(
                    f"`{name}` has shape {array.shape}, and features of shape {self.features.shape} with "
                    f"{len(self.start)} outputs need {(len(self.start), columns)}; check its rows and columns"
                )
        if self.ridge < 0 or self.steps < 0:
            raise ConfigError(f"`ridge` is {self.ridge} and `steps` is {self.steps}; give 0 or more for both")
        largest = float(self._singular[0]) ** -2 if len(self._singular) else np.inf
        if not 0 < self.rate <= largest * (1 + ROUNDING):
            raise ConfigError(
                f"`rate` is {self.rate:g}, and beyond 1/s² = {largest:g} a step overshoots, so that no bound holds; "
                f"give one above 0 and at most {largest:g}"
            )

    def distilled(self, round_: int) -> Array:
        """Weights Wₜ after round t (Lemma 1), [outputs, width]; in round 0 those of the teacher."""
        if round_ == 0:
            return self.teacher
        return self.component(round_) @ self._directions.T

    def fine_tuned(self, round_: int) -> Array:
        """Weights W(t, T) after round t and T steps of fine-tuning, [outputs, width]."""
        inside = self.solution * (1 - self.decay) + self.component(round_) * self.decay
        weights = self.distilled(round_)
        return weights + (inside - weights @ self._directions) @ self._directions.T

    def component(self, round_: int) -> Array:
        """Component c(t) = Wₜ·U in the span of the features, [outputs, rank]."""
        squares = self._singular**2
        shrunk: Array = self.teacher @ self._directions * (squares / (squares + self.ridge)) ** round_
        return shrunk

    def outside(self, round_: int) -> float:
        """Squared norm of Wₜ outside the span of the features: B in round 0, then 0."""
        weights = self.distilled(round_)
        return float(((weights - weights @ self._directions @ self._directions.T) ** 2).sum())

    def distance(self, round_: int) -> float:
        """Distance ‖W_init - W(t, T)‖ that fine-tuning ends at after round t."""
        return float(np.linalg.norm(self.start - self.fine_tuned(round_)))

    def printed_bound(self, round_: int) -> float:
        """ψ(t), the bound as printed."""
        own, kept = self.solution * (1 - self.decay), self.component(round_) * self.decay
        return self._bound(own**2 + kept**2, round_)

    def bound(self, round_: int) -> float:
        """ψ̃(t), the bound with the cross term that the proof loses."""
        own, kept = self.solution * (1 - self.decay), self.component(round_) * self.decay
        return self._bound((abs(own) + abs(kept)) ** 2, round_)

    @cached_property
    def decay(self) -> Array:
        """What is left of a direction's error after fine-tuning, e, [rank]."""
        left: Array = np.maximum(1 - self.rate * self._singular**2, 0.0) ** self.steps
        return left

    @cached_property
    def solution(self) -> Array:
        """Least-norm solution of fine-tuning in the span, q, [outputs, rank]."""
        solved: Array = self.targets @ self._svd[2].T / self._singular
        return solved

    def _bound(self, squares: Array, round_: int) -> float:
        outside = self.outside(0) if round_ == 0 else 0.0
        return float(np.sqrt(squares.sum() + outside) + np.linalg.norm(self.start))

    @cached_property
    def _svd(self) -> tuple[Array, Array, Array]:
        left, singular, right = np.linalg.svd(self.features, full_matrices=False)
        # Directions that are there by rounding alone would be divided by nearly nothing.
        least = singular.max(initial=0.0) * max(self.features.shape) * np.finfo(np.float64).eps
        rank = int((singular > least).sum())
        return left[:, :rank], singular[:rank], right[:rank]

    @property
    def _directions(self) -> Array:
        return self._svd[0]

    @property
    def _singular(self) -> Array:
        return self._svd[1]


@dataclass(frozen=True)
class BoundReport:
    """How often the claims on the linear model hold.

    Args:
        problems: How many random problems were looked at.
        rounds: How many rounds of each, after round 0.
        printed_holds: Share of the problems in which the distance is at most ψ(t) in every round.
        printed_holds_at: The same for each round by itself, round 0 first.
        worst: Largest distance as a multiple of ψ(t).
        distance_falls: Share of the problems in which the distance never rises from round to round.
        first_round_falls: Share of the problems in which the first round lowers the distance.
        corrected_holds: Share of the problems in which the distance is at most ψ̃(t) in every round.
        corrected_falls: Share of the problems in which ψ̃(t) never rises.
        outside: Largest squared norm outside the span after round 1, as a share of B.
    """

    problems: int
    rounds: int
    printed_holds: float
    printed_holds_at: tuple[float, ...]
    worst: float
    distance_falls: float
    first_round_falls: float
    corrected_holds: float
    corrected_falls: float
    outside: float

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def random_problem(draw: np.random.Generator) -> LinearProblem:
    """A problem with fewer examples than features, so that something lies outside their span.

    W₀ is what gradient descent from W_init makes of targets of its own, as further pre-training does. Scales of the
    weights, λ and T are drawn over orders of magnitude.

    Args:
        draw: The generator to draw from.
    """
    examples, outputs = int(draw.integers(1, 9)), int(draw.integers(1, 4))
    width = examples + int(draw.integers(1, 9))
    features = draw.normal(size=(width, examples))
    start = draw.normal(size=(outputs, width)) * 10 ** draw.uniform(-2, 0.5)
    largest = float(np.linalg.norm(features, 2)) ** 2
    rate = float(draw.uniform(0.1, 1.0)) / largest
    pre_training = LinearProblem(
        features, draw.normal(size=(outputs, examples)), start, start, 0.0, rate, int(10 ** draw.uniform(0, 3))
    )
    return LinearProblem(
        features=features,
        targets=draw.normal(size=(outputs, examples)),
        start=start,
        teacher=pre_training.fine_tuned(0),
        ridge=float(10 ** draw.uniform(-2, 1)),
        rate=rate,
        steps=int(10 ** draw.uniform(0, 3)),
    )


def check_bounds(problems: int = 2000, rounds: int = 5, seed: int = 0) -> Finding[BoundReport]:
    """Compare the distances of random problems with the printed and with the corrected bound.

    How often the printed one holds depends on how problems are drawn (`random_problem`); the corrected one always does.

    Args:
        problems: How many problems.
        rounds: How many rounds of each, after round 0.
        seed: Seed of the draw.
    """
    if problems < 1 or rounds < 1:
        raise ConfigError(f"`problems` is {problems} and `rounds` is {rounds}; give 1 or more for both")
    draw = np.random.default_rng(seed)
    drawn = [random_problem(draw) for _ in range(problems)]
    # [problems, rounds + 1]
    distances = _table(drawn, rounds, LinearProblem.distance)
    printed = _table(drawn, rounds, LinearProblem.printed_bound)
    corrected = _table(drawn, rounds, LinearProblem.bound)
    below = _at_most(distances, printed)
    data = BoundReport(
        problems=problems,
        rounds=rounds,
        printed_holds=_share(below.all(1)),
        printed_holds_at=tuple(below.mean(0).tolist()),
        worst=float((distances / printed).max()),
        distance_falls=_share(_falls(distances).all(1)),
        first_round_falls=_share(_falls(distances)[:, 0]),
        corrected_holds=_share(_at_most(distances, corrected).all(1)),
        corrected_falls=_share(_falls(corrected).all(1)),
        outside=max(each.outside(1) / each.outside(0) for each in drawn),
    )
    measured = {"corrected bound": corrected, "printed bound": printed, "distance": distances}
    places = [float(round_) for round_ in range(rounds + 1)]
    # A problem's own scale would let a few large ones decide the mean.
    lines = [Series(name, places, (values / corrected[:, :1]).mean(0).tolist()) for name, values in measured.items()]
    svg = curves([("mean share of the corrected bound in round 0", lines)], x_label="round")
    caption = (
        f"Over {problems:,} random problems; in {100 * data.printed_holds:.1f} % of them the distance stays within the "
        f"printed bound, in {100 * data.corrected_holds:.1f} % within the corrected one."
    )
    return Finding(data, Figure("Distance from the start in the linear model", svg, caption))


def _table(problems: Sequence[LinearProblem], rounds: int, value: Callable[[LinearProblem, int], float]) -> Array:
    return np.array([[value(problem, round_) for round_ in range(rounds + 1)] for problem in problems])


def _at_most(values: Array, bounds: Array) -> NDArray[np.bool_]:
    return values <= bounds * (1 + ROUNDING)


def _falls(values: Array) -> NDArray[np.bool_]:
    """Whether each value is at most the one before it."""
    return _at_most(values[:, 1:], values[:, :-1])


def _share(holds: Any) -> float:
    return float(np.mean(holds))
