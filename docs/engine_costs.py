"""Writes what the native engine costs into its page, from the results: `python docs/engine_costs.py`.

A test compares the page with the results, so that it cannot go stale.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE = DOCS / "guides" / "engine.md"
#: The tables stand between these two lines of the page.
BEGIN, END = "<!-- tables: docs/engine_costs.py -->", "<!-- end of tables -->"
NATIVE = "slimformer, ternary"
#: Results of the instruction set that a machine would take, and of those that were forced.
NAMES = ("runtime", "runtime_avx2")
#: What is equal in all points of a picture.
CONSTANT = {
    "texts": "texts of 64 tokens at once",
    "tokens": "tokens of one text",
    "layers": "layers, one text of 128 tokens",
    "threads": "threads, 8 texts of 128 tokens",
}


def records() -> Iterator[dict[str, Any]]:
    """The results there are, without those of a time when less was measured."""
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"result": {}}
        if "measured" in record["result"]:
            yield record


def text() -> str:
    """All tables, one result after the other."""
    return "\n\n".join(part for record in records() for part in _of_record(record)) or "Nothing is measured yet."


def _of_record(record: dict[str, Any]) -> Iterator[str]:
    result, machine = record["result"], record["machine"]
    forced = "" if record["benchmark"] == "runtime" else ", forced"
    yield (
        f"### `{result['instruction_set']}`{forced}: {machine['processor']}, {machine['cores']} cores\n\n"
        f"Threads: {machine['threads']}. Versions: {', '.join(f'{name} {each}' for name, each in _versions(record))}."
    )
    for name, write in WRITERS.items():
        if result.get(name):
            yield from write(result[name])
    if result.get("growth"):
        yield from _growth(result["growth"], record["benchmark"])
    if result.get("left_out"):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in result["left_out"].items())
        yield f"Left out of this run: {reasons}."
    yield from _ahead(result)


def _versions(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, each) for name, each in record["versions"].items() if name not in ("transformers", "numpy")]


def _encoders(measured: dict[str, Any]) -> Iterator[str]:
    for shape, batches in measured.items():
        peers = dict.fromkeys(peer for cell in batches.values() for peer in cell["ms"])
        rows = {peer: [_number(cell["ms"].get(peer)) for cell in batches.values()] for peer in peers}
        yield f"Milliseconds of a forward, {shape}:\n\n" + table("", list(batches), rows)


def _products(measured: dict[str, Any]) -> Iterator[str]:
    for rows in next(iter(measured.values())):
        peers = dict.fromkeys(peer for each in measured.values() for peer in each[rows])
        cells = {peer: [_number(each[rows].get(peer)) for each in measured.values()] for peer in peers}
        yield (
            f"Billions of operations a second of one thread, {rows} row{'' if rows == '1' else 's'}, "
            "inputs x outputs:\n\n" + table("", list(measured), cells)
        )


def _peaks(measured: dict[str, float]) -> Iterator[str]:
    peaks = ", ".join(f"`{name}` {_number(value)}" for name, value in measured.items() if value)
    yield f"What the same thread reaches where nothing is read from memory: {peaks}."


def _starts(measured: dict[str, Any]) -> Iterator[str]:
    for shape, measures in measured.items():
        peers = next(iter(measures.values()))
        rows = {peer: [_number(each[peer]) for each in measures.values()] for peer in peers}
        yield f"A new process, files in memory, {shape}:\n\n" + table("", list(measures), rows)


def _profile(measured: dict[str, Any]) -> Iterator[str]:
    rows = {
        f"{shape}, {batch}": [_number(value) for value in cell.values()]
        for shape, batches in measured.items()
        for batch, cell in batches.items()
    }
    kinds = list(next(iter(next(iter(measured.values())).values())))
    yield "Where the time of a ternary forward goes, one thread, percent of its milliseconds:\n\n" + table(
        "", kinds, rows
    )


def _targets(targets: list[dict[str, Any]]) -> Iterator[str]:
    rows = {
        each["what"]: [
            _number(each["target"]),
            f"{_number(each['least'])} ({each['where']})",
            "yes" if each["met"] else "no: " + "; ".join(each["missed"]),
        ]
        for each in targets
    }
    yield "What it set out to reach, each time as a ratio of which more is better:\n\n" + table(
        "", ["target", "least", "reached"], rows
    )


def _growth(measured: dict[str, Any], name: str) -> Iterator[str]:
    for axis, places in measured.items():
        peers = dict.fromkeys(peer for each in places.values() for peer in each)
        rows = {peer: [_number(each.get(peer)) for each in places.values()] for peer in peers}
        yield (
            f"Milliseconds in the width of MiniLM, by {CONSTANT[axis]}:\n\n"
            f"![Time over {axis}](../../benchmarks/results/{name}_{axis}.svg)\n\n" + table(axis, list(places), rows)
        )


WRITERS = {
    "targets": _targets,
    "encoders": _encoders,
    "products": _products,
    "peaks": _peaks,
    "starts": _starts,
    "profile": _profile,
}


def _ahead(result: dict[str, Any]) -> Iterator[str]:
    """Where another runtime is faster than the ternary forward."""
    cells: dict[str, Mapping[str, float]] = {}
    for shape, batches in result.get("encoders", {}).items():
        cells |= {f"{shape}, {batch}": cell["ms"] for batch, cell in batches.items()}
    for axis, places in result.get("growth", {}).items():
        cells |= {f"width of MiniLM, {axis}: {place}": each for place, each in places.items()}
    if not cells:
        return
    faster = [
        f"{peer} ({where}: {_number(ms[peer])} against {_number(ms[NATIVE])} ms)"
        for where, ms in cells.items()
        for peer in ms
        if not peer.startswith("slimformer") and ms[peer] < ms[NATIVE]
    ]
    yield (
        f"Faster than {NATIVE}: {'; '.join(faster)}."
        if faster
        else f"No other runtime was faster than {NATIVE} in any of these."
    )


def table(corner: str, head: Iterable[str], rows: Mapping[str, Iterable[str]]) -> str:
    """A table in Markdown, with names in the first column and numbers in the others."""
    columns = list(head)
    lines = [f"| {' | '.join([corner, *columns])} |", f"|---{'|---:' * len(columns)}|"]
    return "\n".join([*lines, *(f"| {' | '.join([name, *cells])} |" for name, cells in rows.items())])


def _number(value: float | None) -> str:
    """Three digits, or all before the point."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """Write the tables."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text()}\n\n{END}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
