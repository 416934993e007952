"""Writes the table and the picture of the start page from `benchmarks/results`: `python docs/start.py`.

A test compares both with the results, so that neither can go stale.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE = DOCS / "index.md"
PICTURE = DOCS / "_static" / "methods.svg"
#: The table stands between these two lines of the page.
BEGIN, END = "<!-- table: docs/start.py -->", "<!-- end of table -->"
COLOURS = ("#4c8bd6", "#d97a3a", "#3f9e57", "#a95fd0", "#d05c6f", "#2f9aa3")
#: Readable on a white and on a black page.
GREY = "#808890"


@dataclass(frozen=True)
class Row:
    """A method: what it is for, where its numbers stand in the results, and its label's place in the picture."""

    problem: str
    method: str
    page: str
    cost: str
    accuracy: tuple[str, ...]
    beside: str
    beside_accuracy: tuple[str, ...] | None
    label: tuple[int, int] = (8, 6)

    @property
    def bytes(self) -> int:
        """Bytes of the weights of one task."""
        return int(measured("method_cost", "bytes", self.cost))

    @property
    def speed(self) -> float:
        """Speed of a forward, as a multiple of the fine-tuned model's."""
        return float(measured("method_cost", "speed", self.cost))


FINE_TUNED = ("mask_quality", "tasks", "sst2", "finetune", "mean")
ROWS = (
    Row(
        "one task, as good as it gets",
        "fine-tuning",
        "finetune",
        "finetune",
        ("finetune", "sst2", "metrics", "accuracy", "mean"),
        "",
        None,
    ),
    Row(
        "a smaller and faster model, for any task",
        "distillation",
        "distill",
        "distill",
        ("distill_quality", "table", "v2 from spaced blocks", "sst2"),
        "the same student, not distilled",
        ("distill_quality", "table", "random start", "sst2"),
    ),
    Row(
        "many tasks on one base",
        "masking",
        "mask",
        "mask",
        ("mask_quality", "tasks", "sst2", "mask", "mean"),
        "fine-tuned as long",
        FINE_TUNED,
    ),
    Row(
        "many tasks on one base, and faster",
        "masking, `--structured both --sparsity 0.5`",
        "mask",
        "mask, structured",
        ("mask_quality", "structured", "neurons and heads 50 %", "accuracy"),
        "fine-tuned as long",
        FINE_TUNED,
        (10, -14),
    ),
    Row(
        "a small file",
        "quantization, ternary",
        "quantize",
        "quantize",
        ("quantize_quality", "all_tasks", "map+output, four times as long", "sst2"),
        "its float self",
        ("quantize_quality", "all_tasks", "float", "sst2"),
        (-30, 8),
    ),
    Row(
        "one domain's words, nothing trained",
        "trimming",
        "trim",
        "trim",
        ("trim", "sst2", "coverage 0.9995", "accuracy"),
        "before",
        ("trim", "sst2", "before", "accuracy"),
        (-20, -28),
    ),
)


@cache
def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["result"]
    return result


def measured(name: str, *keys: str) -> Any:
    """A number of `benchmarks/results/NAME.json`."""
    value: Any = _result(name)
    for key in keys:
        value = value[key]
    return value


def accuracy(*keys: str) -> float:
    """An accuracy in points; `finetune.json` keeps shares of 1."""
    value = float(measured(*keys))
    return 100 * value if keys[0] == "finetune" else value


def table() -> str:
    """Which method for which problem, in Markdown."""
    lines = [
        "| you want | method | bytes per task | speed | accuracy | to compare with |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in ROWS:
        name, _, flags = row.method.partition(", ")
        method = f"[{name}](methods/{row.page}.md)" + (f", {flags}" if flags else "")
        beside = f"{accuracy(*row.beside_accuracy):.1f} {row.beside}" if row.beside_accuracy else ""
        cost = f"{row.bytes / 1e6:.1f} MB | {row.speed:.1f} \u00d7"
        lines.append(f"| {row.problem} | {method} | {cost} | {accuracy(*row.accuracy):.1f} | {beside} |")
    return "\n".join(lines)


def points() -> dict[str, list[float]]:
    """What the picture shows: bytes, accuracy and speed of each method."""
    return {row.cost: [row.bytes, accuracy(*row.accuracy), row.speed] for row in ROWS}


def picture() -> str:
    """Accuracy over the bytes of a task, as SVG; the points stand in its description too."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 3.5), layout="constrained")
    figure.patch.set_alpha(0)
    axis = figure.subplots()
    axis.patch.set_alpha(0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.grid(color=GREY, alpha=0.25, linewidth=0.8)
    axis.tick_params(colors=GREY)
    axis.set_xscale("log")
    axis.set_xlim(0.25, 500)
    axis.set_ylim(77, 92)
    axis.set_xticks([0.3, 1, 3, 10, 30, 100], ["0.3", "1", "3", "10", "30", "100"])
    axis.minorticks_off()
    axis.set_xlabel("megabytes of weights for one task", color=GREY)
    axis.set_ylabel("accuracy on SST-2", color=GREY)
    for colour, row in zip(COLOURS, ROWS, strict=True):
        size, reached, speed = points()[row.cost]
        if row.beside_accuracy:  # from what it is compared with to what it reached
            start = (points()["finetune"][0] if row.page != "distill" else size) / 1e6
            compared = accuracy(*row.beside_accuracy)
            arrow = {"arrowstyle": "->", "color": colour, "alpha": 0.55, "linewidth": 1.3}
            axis.annotate("", (size / 1e6, reached), (start, compared), arrowprops=arrow)
            axis.scatter([start], [compared], s=22, facecolors="none", edgecolors=colour)
        axis.scatter([size / 1e6], [reached], s=60, color=colour, zorder=3)
        label = f"{row.cost}\n{size / 1e6:.1f} MB, {speed:.1f} \u00d7 as fast"
        axis.annotate(
            label, (size / 1e6, reached), xytext=row.label, textcoords="offset points", color=colour, fontsize=9
        )
    text = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Description": json.dumps(points())}
    with matplotlib.rc_context({"svg.hashsalt": "slimformer", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def main() -> None:
    """Write both."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{table()}\n\n{END}", page), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
