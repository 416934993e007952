"""Plots as SVG text: the same data give the same bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = ("#2563a8", "#c2571a", "#2e8540", "#8a3ab0", "#b02a43", "#5c6675")


@dataclass(frozen=True)
class Series:
    """Points that belong together, under one name."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def curves(panels: Sequence[tuple[str, Sequence[Series]]], x_label: str) -> str:
    """Lines over a common axis, one panel beside the other.

    Args:
        panels: For each panel the label of its y axis and its lines.
        x_label: Label of the x axis.
    """
    figure, axes = _figure(len(panels))
    furthest = max(x for _, lines in panels for line in lines for x in line.x)
    for axis, (y_label, lines) in zip(axes, panels, strict=True):
        axis.set_xlim(0, furthest * 1.03)
        for colour, line in zip(COLOURS * 9, lines, strict=False):
            marker = "o" if len(line.x) <= 20 else None
            axis.plot(line.x, line.y, color=colour, marker=marker, markersize=4, linewidth=1.8, label=line.name)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        if len(lines) > 1:
            axis.legend(frameon=False, fontsize=9)
    return _svg(figure)


def scatter(points: Sequence[tuple[str, float, float]], x_label: str, y_label: str) -> str:
    """Named points in the plane, each with its name beside it."""
    figure, (axis,) = _figure(1)
    for colour, (name, x, y) in zip(COLOURS * 9, points, strict=False):
        axis.scatter([x], [y], color=colour, s=45, zorder=3)
        axis.annotate(name, (x, y), xytext=(7, 4), textcoords="offset points", fontsize=9)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.margins(0.25)
    return _svg(figure)


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e3e7ed", linewidth=0.8)
        axis.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "slimformer", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
