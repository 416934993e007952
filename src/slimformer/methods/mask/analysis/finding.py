"""What an analysis returns, and the two pictures that lines cannot draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slimformer.report.plots import COLOURS, _figure, _svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slimformer.report import Figure


@dataclass(frozen=True)
class Finding:
    """Data as JSON types, and a plot of them for `slimformer.report`."""

    data: dict[str, Any]
    figure: Figure


def clouds(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> str:
    """Points in the plane, coloured by group, one panel beside the other.

    Args:
        panels: Title of a panel → group → points.
    """
    figure, axes = _figure(len(panels))
    for axis, (title, groups) in zip(axes, panels.items(), strict=True):
        for colour, (name, points) in zip(COLOURS * 9, groups.items(), strict=False):
            axis.scatter(*zip(*points, strict=True), color=colour, s=9, alpha=0.7, linewidths=0, label=name)
        axis.set_title(title, fontsize=10)
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
        drawn = axis.bar(places, heights, width * 0.92, color=COLOURS[number % len(COLOURS)], label=name)
        axis.bar_label(drawn, fmt="%.1f", fontsize=8, padding=2)
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_ylabel(y_label)
    axis.margins(y=0.15)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure)
