"""What attention hands on: its range token by token, and how far a student's is from the teacher's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from slimformer.anatomy import Anatomy
from slimformer.methods.quantize.analysis.looking import attention_maps, look, select_tokens, tokens_that_count
from slimformer.report import Figure, Finding, Series, curves
from slimformer.taps import Taps

if TYPE_CHECKING:
    from torch import Tensor, nn

#: How much wider than of other tokens the range of special tokens is where attention is distinctive.
OUTLIER = 2.0
#: How far from that limit, as a factor, a ratio has to be to tell anything.
MARGIN = 1.25


@dataclass(frozen=True)
class Ranges:
    """Smallest and largest value of the attention output of one sentence: for each block, for each token."""

    low: list[list[float]]
    high: list[list[float]]


def dynamic_range(model: nn.Module, batch: dict[str, Any], sentence: int = 0) -> Finding[Ranges]:
    """Range of the attention sub-layer's output, token by token, for one sentence of a batch."""
    outputs = _outputs(model, batch)
    chosen = tokens_that_count(batch, outputs[0])[sentence]
    rows = [output[sentence][chosen] for output in outputs]  # [tokens, hidden] each
    data = Ranges([row.amin(-1).tolist() for row in rows], [row.amax(-1).tolist() for row in rows])
    places = list(range(len(rows[0])))
    panels = [
        (name, [Series(f"block {index}", places, values) for index, values in enumerate(side)])
        for name, side in (("smallest value", data.low), ("largest value", data.high))
    ]
    return Finding(data, Figure("Range of the attention output", curves(panels, x_label="token")))


@dataclass(frozen=True)
class Case:
    """Whether a task is one of distinctive attention.

    Args:
        ratio: For each block, the median range of special tokens over that of the others.
        case: 1 where special tokens are outliers and the attention output helps; 2 where the attention map does; None
            where the ratio is too near the limit to tell.
        suggestion: The setting of `kd` that goes with it; for None the one that the paper finds best or close overall.
    """

    ratio: list[float]
    case: int | None
    suggestion: str


def detect_case(
    model: nn.Module, batch: dict[str, Any], special: Tensor, limit: float = OUTLIER, margin: float = MARGIN
) -> Finding[Case]:
    """Tell the paper's two cases of tasks apart by the range of the attention output on special tokens.

    The limit is a property of the base: `benchmarks/detect_case.py` fine-tunes one on RTE, CoLA and SST-2 and says
    which limit tells their cases apart, or that none does.

    Args:
        model: The fine-tuned float model.
        batch: Some sentences of the task.
        special: Boolean [batch, length], True for tokens such as [CLS] and [SEP]; see `tokens_in`.
        limit: The ratio of ranges from which special tokens are outliers.
        margin: How far from the limit, as a factor, the ratio has to be.
    """
    ratios = []
    for output in _outputs(model, batch):
        spans = output.amax(-1) - output.amin(-1)  # [batch, length]
        counts = tokens_that_count(batch, output)
        chosen = select_tokens(special, counts)
        ratios.append(float(spans[chosen].median() / spans[~chosen & counts].median()))
    largest = max(ratios)
    case = 1 if largest >= limit * margin else 2 if largest <= limit / margin else None
    data = Case(ratios, case, "output+map" if case == 1 else "map+output")
    lines = [
        Series("special tokens over others", list(range(len(ratios))), ratios),
        Series("limit", [0, len(ratios) - 1], [limit, limit]),
    ]
    title = "The case cannot be told" if case is None else f"Case {case}"
    figure = Figure(title, curves([("ratio of ranges", lines)], x_label="block"))
    return Finding(data, figure)


@torch.no_grad()
def attention_distances(
    teacher: nn.Module, students: dict[str, nn.Module], batch: dict[str, Any], token: int | Tensor | None = None
) -> Finding[dict[str, dict[str, list[float]]]]:
    """How far students are from the teacher in what attention makes and in what it hands on, block by block.

    SA-GEN: squared difference of the probabilities. SA-PROP: squared difference of what each head would hand on of
    each token, `f(x) = (x·W^V + b^V)·W^O`.

    Args:
        teacher: The float model.
        students: Students by name.
        batch: Some sentences.
        token: What is attended to: a position, or boolean [batch, length], True for the tokens to look at, such as
            every [SEP] (`tokens_in`); None for all.
    """
    targets = attention_maps(teacher, batch), _propagated(teacher, batch)
    counts = tokens_that_count(batch, targets[1][0])
    chosen = counts if token is None else select_tokens(token, counts)
    compared = counts[:, None, :, None] & chosen[:, None, None, :], chosen[:, None, :, None]
    data = {}
    for name, student in students.items():
        outputs = attention_maps(student, batch), _propagated(student, batch)
        data[name] = {
            key: [_apart(one, other, where) for one, other in zip(target, output, strict=True)]
            for key, target, output, where in zip(("sa_gen", "sa_prop"), targets, outputs, compared, strict=True)
        }
    blocks = list(range(len(targets[0])))
    panels = [
        (label, [Series(name, blocks, values[key]) for name, values in data.items()])
        for key, label in (("sa_gen", "SA-GEN"), ("sa_prop", "SA-PROP"))
    ]
    return Finding(data, Figure("Distance from the teacher", curves(panels, x_label="block")))


def _outputs(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    return [block["attention_output"].float() for block in look(model, batch, ("attention_output",))]


def _propagated(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """f(x) of every block: [batch, heads, length, hidden]."""
    with Taps(model, "all", ("v",)) as taps:
        look(model, batch, ())
        made = []
        for block in Anatomy.of(model).blocks:
            values = taps[block.index].v.unflatten(-1, (-1, block.head_width)).transpose(1, 2)
            values = values.repeat_interleave(block.heads // values.shape[1], dim=1)
            weight = block.output.weight.unflatten(1, (block.heads, -1))  # [hidden, heads, width]
            made.append(torch.einsum("bhlw,ohw->bhlo", values, weight).float())
    return made


def _apart(one: Tensor, other: Tensor, where: Tensor) -> float:
    """Mean square over what counts, broadcastable to both: padding neither attends nor is attended to."""
    return float((one - other).square()[where.expand_as(one)].mean())
