"""Plots as SVG text: the same data give the same bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.errors import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

COLOURS = ("#2563a8", "#c2571a", "#2e8540", "#8a3ab0", "#b02a43", "#5c6675")


MARKERS = ("o", "s", "^", "D", "v")


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
    places = [x for _, lines in panels for line in lines for x in line.x]
    furthest = max(places)
    for axis, (y_label, lines) in zip(axes, panels, strict=True):
        axis.set_xlim(0, furthest * 1.03)
        for colour, line in zip(COLOURS * 9, lines, strict=False):
            marker = "o" if len(line.x) <= 20 else None
            axis.plot(
                line.x, line.y, color=colour, marker=marker, markersize=4, linewidth=1.8, label=_literal(line.name)
            )
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.xaxis.get_major_locator().set_params(integer=all(float(x).is_integer() for x in places))
        if len(lines) > 1:
            axis.legend(frameon=False, fontsize=9)
    return _svg(figure)


def scatter(points: Sequence[tuple[str, float, float]], x_label: str, y_label: str) -> str:
    """Named points in the plane, each with its name beside it."""
    figure, (axis,) = _figure(1)
    for colour, (name, x, y) in zip(COLOURS * 9, points, strict=False):
        axis.scatter([x], [y], color=colour, s=45, zorder=3)
        axis.annotate(_literal(name), (x, y), xytext=(7, 4), textcoords="offset points", fontsize=9)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.margins(0.25)
    return _svg(figure)


@dataclass(frozen=True)
class Measured:
    """A named point of which the height is known up to an interval."""

    name: str
    x: float
    y: float
    interval: tuple[float, float] | None = None


def tradeoffs(panels: Sequence[tuple[str, Sequence[Measured], float | None]], y_label: str) -> str:
    """The same named points over several costs, one panel beside the other, with intervals and limits.

    Args:
        panels: For each panel the label of its x axis, the points, and where the cost has a limit.
        y_label: Label of the y axis.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    figure, axes = _figure(len(panels), height=4.0)
    for axis, (x_label, points, limit) in zip(axes, panels, strict=True):
        for number, point in enumerate(points):
            low, high = point.interval or (point.y, point.y)
            axis.errorbar(
                [point.x],
                [point.y],
                yerr=[[max(0.0, point.y - low)], [max(0.0, high - point.y)]],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number // len(COLOURS) % len(MARKERS)],
                markersize=7,
                capsize=3,
                linestyle="none",
                label=_literal(point.name),
            )
        if limit is not None:
            axis.axvline(limit, color=COLOURS[4], linestyle="--", linewidth=1.2)
        axis.set_xscale("log", subs=[])
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_xlabel(x_label)
        axis.margins(x=0.15)
    axes[0].set_ylabel(y_label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return _svg(figure)


def front(cloud: Series, best: Series, named: Sequence[tuple[str, float, float]], x_label: str, y_label: str) -> str:
    """Many points in the plane, a line through the best of them, and some with their names beside them."""
    figure, (axis,) = _figure(1)
    axis.scatter(cloud.x, cloud.y, color=COLOURS[5], s=12, alpha=0.5, linewidths=0, label=_literal(cloud.name))
    axis.plot(best.x, best.y, color=COLOURS[0], marker="o", markersize=4, linewidth=1.8, label=_literal(best.name))
    for name, x, y in named:
        axis.scatter([x], [y], color=COLOURS[1], s=45, zorder=3)
        axis.annotate(_literal(name), (x, y), xytext=(7, 4), textcoords="offset points", fontsize=9)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.margins(0.1)
    axis.legend(frameon=False, fontsize=9)
    return _svg(figure)


def clouds(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> str:
    """Points in the plane, coloured by group, one panel beside the other.

    Args:
        panels: Title of a panel → group → points.
    """
    figure, axes = _figure(len(panels))
    for axis, (title, groups) in zip(axes, panels.items(), strict=True):
        for colour, (name, points) in zip(COLOURS * 9, groups.items(), strict=False):
            axis.scatter(*zip(*points, strict=True), color=colour, s=9, alpha=0.7, linewidths=0, label=_literal(name))
        axis.set_title(_literal(title), fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0].legend(frameon=False, fontsize=9, markerscale=2)
    return _svg(figure)


def bars(groups: Mapping[str, Mapping[str, float]], y_label: str) -> str:
    """Bars side by side, one cluster for each group.

    Args:
        groups: Name of a cluster → name of a bar → its height.
        y_label: What the heights are.
    """
    figure, (axis,) = _figure(1)
    names = list(dict.fromkeys(name for heights in groups.values() for name in heights))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [index + (number - (len(names) - 1) / 2) * width for index in range(len(groups))]
        heights = [each.get(name, 0.0) for each in groups.values()]
        drawn = axis.bar(places, heights, width * 0.92, color=COLOURS[number % len(COLOURS)], label=_literal(name))
        axis.bar_label(drawn, fmt="%.1f", fontsize=8, padding=2)
    axis.set_xticks(range(len(groups)), [_literal(group) for group in groups])
    axis.set_ylabel(y_label)
    axis.margins(y=0.15)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure)


def heatmaps(maps: Mapping[str, NDArray[Any]], names: Sequence[str] | None = None) -> str:
    """Square maps as pictures of one scale, one beside the other.

    Args:
        maps: Title of a picture → its values, [rows, columns].
        names: What rows and columns are; shown where there is room for them.
    """
    figure, axes = _figure(len(maps), height=9.0 / len(maps) + 0.6)
    brightest = max(float(values.max()) for values in maps.values())
    for axis, (title, values) in zip(axes, maps.items(), strict=True):
        axis.grid(visible=False)
        shown = axis.imshow(values, cmap="Blues", vmin=0, vmax=brightest, interpolation="nearest")
        axis.set_title(_literal(title), fontsize=10)
        places = range(len(values)) if names is not None and len(values) <= 24 else range(0)
        labels = [names[place] for place in places] if names is not None else []
        axis.set_xticks(places, [_literal(label) for label in labels], rotation=90, fontsize=7)
        axis.set_yticks(places, [_literal(label) for label in labels], fontsize=7)
    figure.colorbar(shown, ax=list(axes), shrink=0.8)
    return _svg(figure)


def _literal(name: str) -> str:
    """A name as it is: Matplotlib takes what stands between two dollars for a formula, and fails where it is none."""
    return visible(name).replace("$", r"\$")


def _figure(panels: int, height: float = 3.4) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained")
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
