"""Writes `results.md` from `benchmarks/hypotheses.yaml` and `benchmarks/results`: `python docs/results.py`.

A verdict is computed where the claim has a `lead`, a difference with a 95 % interval:

- `row`: two rows of a table with mean, deviation and number of seeds (Welch's interval);
- `tasks`: two methods on the same tasks (paired over tasks);
- `gap`: a mean difference of losses with its standard error, where less is better;
- `interval`: a difference with its interval.

*shown* where the interval lies above 0 (for a claim of parity: within a point of 0, or above), *differs* where it lies
below 0, *undecided* otherwise. Other verdicts are written by hand, with what was found; a claim with neither is *open*.
A test compares the page with the results, so that it cannot go stale.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from scipy.stats import t as student

DOCS = Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
PAGE = DOCS / "results.md"
HYPOTHESES = BENCHMARKS / "hypotheses.yaml"
VERDICTS = ("shown", "partly", "differs", "not shown", "undecided", "open")
#: A claim of parity holds within so many points.
PAR = 1.0

HEAD = """\
# What was shown

Every claim of the five papers that this project has an opinion on, whether it was found here too, and what would decide
it. Models and runs are far smaller than the papers': mostly MiniLM-L6 (22.7 million weights), hundreds of steps and one
or two seeds, so that much is undecided. The verdict is computed from the files in `benchmarks/results` wherever there
are two numbers and an interval (95 %). Claims are kept in `benchmarks/hypotheses.yaml`; those that are open are written
down before they are measured.

- **shown**: the difference, with its interval, lies on the claim's side
- **partly**: a part of the claim holds
- **differs**: the difference, with its interval, lies on the other side
- **not shown**: it was looked for and not seen
- **undecided**: too few seeds, or too short training
- **open**: not measured yet
"""


class Lead(NamedTuple):
    """How far one is ahead of another, and half of the 95 % interval."""

    mean: float
    half: float
    text: str


@cache
def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))["result"]
    return result


def measured(path: str) -> Any:
    """What stands at `file/key/key` of the results."""
    name, *keys = path.split("/")
    value: Any = _result(name)
    for key in keys:
        value = value[key]
    return value


def lead(how: dict[str, str]) -> Lead:
    """The difference that decides a claim."""
    if "gap" in how:
        gap = measured(how["gap"])
        return Lead(-gap["mean"], 1.96 * gap["error"], f"{-gap['mean']:+.3f} ± {1.96 * gap['error']:.3f} nats")
    if "interval" in how:
        found = measured(how["interval"])
        low, high = (100 * each for each in found["interval"])
        mean = 100 * found["difference"]
        return Lead(mean, max(high - mean, mean - low), f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})")
    if "tasks" in how:
        tasks = measured(how["tasks"]).values()
        differences = [task[how["of"]]["mean"] - task[how["over"]]["mean"] for task in tasks]
        count = len(differences)
        half = float(student.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
        mean = statistics.fmean(differences)
        return Lead(mean, half, f"{mean:+.1f} ± {half:.1f} points over {count} tasks")
    one, other = (measured(f"{how['row']}/{how[side]}") for side in ("of", "over"))
    return welch(one, other)


def welch(one: dict[str, float], other: dict[str, float]) -> Lead:
    """The difference of two means of some seeds each, whose spreads may differ."""
    means = [row.get("average", row.get("mean", 0.0)) for row in (one, other)]
    parts = [(row["deviation"] ** 2 / row["seeds"], row["seeds"] - 1) for row in (one, other)]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    half = float(student.ppf(0.975, freedom)) * math.sqrt(variance)
    mean, seeds = means[0] - means[1], min(one["seeds"], other["seeds"])
    text = f"{means[0]:.1f} against {means[1]:.1f}: {mean:+.1f} ± {half:.1f} points, {seeds} seeds"
    return Lead(mean, half, text)


def decide(mean: float, half: float, par: bool) -> str:
    """Whether an interval lies on the claim's side."""
    limit = -PAR if par else 0
    if mean - half > limit:
        return "shown"
    return "differs" if mean + half < limit else "undecided"


def verdict(claim: dict[str, Any]) -> str:
    """What is known of a claim."""
    if "lead" not in claim:
        return str(claim.get("verdict", "open"))
    ahead = lead(claim["lead"])
    return decide(ahead.mean, ahead.half, claim.get("par", False))


def found(claim: dict[str, Any]) -> str:
    """The numbers of a claim, in words."""
    if "lead" in claim:
        text = lead(claim["lead"]).text
    else:
        text = re.sub(r"\{([^}]+)\}", lambda match: _shown(measured(match[1])), claim.get("found", ""))
    return "; ".join(each.strip() for each in (text, claim.get("limits", "")) if each)


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def page() -> str:
    """The whole page."""
    papers = yaml.safe_load(HYPOTHESES.read_text(encoding="utf-8"))["papers"]
    count = Counter(verdict(claim) for paper in papers for claim in paper["claims"])
    parts = [HEAD, "So far: " + ", ".join(f"{count[each]} {each}" for each in VERDICTS if count[each]) + ".\n"]
    for paper in papers:
        source = f"[arXiv {paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']}). " if paper["arxiv"] else ""
        parts.append(f"## {paper['title']}\n\n{source}Page: [{paper['page']}]({paper['page']}).\n")
        rows = ["| claim | in the paper | here | |", "|---|---|---|---|"]
        rows += [
            f"| {claim['claim']} | {claim['says']} | {found(claim)} | **{verdict(claim)}** |"
            for claim in paper["claims"]
        ]
        parts.append("\n".join(rows) + "\n")
        left = [claim for claim in paper["claims"] if verdict(claim) != "shown"]
        parts.append("What would decide the rest, and hours of one core:\n")
        commands: dict[str, list[str]] = {}
        for claim in left:
            commands.setdefault(f"{claim['command']} | {claim['hours']:g}", []).append(claim["claim"])
        rows = ["| command | hours | decides |", "|---|---:|---|"]
        for command, claims in commands.items():
            what, _, hours = command.rpartition(" | ")
            rows.append(f"| {f'`{what}`' if what.startswith('python ') else what} | {hours} | {'; '.join(claims)} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
