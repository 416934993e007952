"""Counts that may only fall: each is of something the design does without, with the number there is left.

A test fails where there is more of it than its number in `LIMITS`, and says where. Where there is less, it warns: lower
the number in the same commit, so that what was won is not lost again.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
import warnings
from functools import cache
from typing import TYPE_CHECKING

import pytest

from slimformer import registry
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCES = ROOT / "src" / "slimformer"
METHODS = frozenset(registry.METHODS)
KINDS = frozenset(registry.KINDS)
DIALECT = frozenset({"found", "given", "made", "shown", "wanted", "theirs", "ours", "told"})
LONG, MANY = 300, 12

#: What is counted → how much of it there may be.
LIMITS = {
    "switches on the kind of a task outside tasks/kinds": 0,
    "lists and tables of kinds outside tasks/kinds and tasks/presets": 0,
    "lists of methods outside the registry": 0,
    "checks switched off for an import": 2,
    "imports the layers make an exception for": 0,
    "modules of more than 300 lines": 0,
    "modules beyond the twelfth of a folder": 2,
    "values named in the dialect": 102,
    "ways of reading paths, JSON and CSV outside files.py": 0,
}


def modules() -> dict[Path, ast.Module]:
    return parsed(SOURCES)


@cache
def parsed(folder: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}


def place(path: Path, node: ast.AST | None = None, what: str = "") -> str:
    line = f":{node.lineno}" if node is not None and hasattr(node, "lineno") else ""
    return f"{path.relative_to(SOURCES)}{line} {what}".rstrip()


def outside(*parts: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules that lie in none of some folders or files of the package."""
    for path, tree in modules().items():
        if not any(path.is_relative_to(SOURCES / part) for part in parts):
            yield path, tree


def texts(node: ast.AST) -> set[str]:
    """The texts that stand in an expression."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def words(node: ast.AST) -> set[str]:
    """The names of variables and attributes in an expression."""
    named = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return named | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def kind_constants() -> frozenset[str]:
    """Module constants that hold kinds, such as `MODELLING`."""
    return frozenset(
        target.id
        for _, tree in outside("tasks/kinds", "tasks/presets")
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and KINDS & texts(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper()
    )


def kind_switches() -> Iterator[str]:
    constants = kind_constants()
    for path, tree in outside("tasks/kinds"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and "kind" in words(node):
                if KINDS & texts(node) or constants & words(node):
                    yield place(path, node, ast.unparse(node))
            elif isinstance(node, ast.Match) and "kind" in words(node.subject):
                yield from (
                    place(path, case.pattern, ast.unparse(case.pattern))
                    for case in node.cases
                    if KINDS & texts(case.pattern)
                )


def kind_lists() -> Iterator[str]:
    for path, tree in outside("registry", "tasks/kinds", "tasks/presets"):
        for node in ast.walk(tree):
            names = KINDS & listed(node)
            if len(names) > 1:
                yield place(path, node, f"names {', '.join(sorted(names))}")


def listed(node: ast.AST) -> set[object]:
    """The constants that stand in a list, tuple or set, or are the keys of a table."""
    items = getattr(node, "elts", None) or getattr(node, "keys", None)
    return {each.value for each in items if isinstance(each, ast.Constant)} if isinstance(items, list) else set()


def method_lists() -> Iterator[str]:
    folders = [f"methods/{name}" for name in METHODS]
    for path, tree in outside("registry", *folders):
        imported = set()
        for node in ast.walk(tree):
            names = METHODS & listed(node)
            if len(names) > 1:
                yield place(path, node, f"names {', '.join(sorted(names))}")
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= METHODS & set(node.module.split("."))
        if len(imported) > 1:
            yield place(path, what=f"imports {', '.join(sorted(imported))}")


def comments(path: Path) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def unchecked_imports() -> Iterator[str]:
    for path, tree in modules().items():
        notes = comments(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                yield from (
                    place(path, node, notes[line])
                    for line in lines
                    if "noqa" in notes.get(line, "") or "type: ignore" in notes.get(line, "")
                )


def excepted_imports() -> Iterator[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in settings["tool"]["importlinter"]["contracts"]:
        yield from contract.get("ignore_imports", [])


def long_modules() -> Iterator[str]:
    for path in modules():
        lines = path.read_text().count("\n")
        if lines > LONG:
            yield place(path, what=f"has {lines} lines")


def crowded_folders() -> Iterator[str]:
    for folder in sorted({path.parent for path in modules()}):
        yield from (place(path) for path in sorted(folder.glob("*.py"))[MANY:])


def dialect() -> Iterator[str]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            bound = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
            bound += [node.arg] if isinstance(node, ast.arg) else []
            bound += [node.name] if isinstance(node, ast.FunctionDef) else []
            yield from (place(path, node, name) for name in bound if name in DIALECT)


#: What `slimformer.files` alone calls: module, or nothing for any object → names of functions.
FILES_ONLY = {"json": {"load", "loads"}, "csv": {"reader", "DictReader", "field_size_limit"}, "": {"expanduser"}}


def second_readers() -> Iterator[str]:
    for path, tree in outside("files.py"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and {each.name for each in node.names} & FILES_ONLY.get(
                node.module or "-", set()
            ):
                yield place(path, node, ast.unparse(node))
            if isinstance(node, ast.Attribute):
                module = node.value.id if isinstance(node.value, ast.Name) else ""
                if node.attr in FILES_ONLY.get(module, set()) | FILES_ONLY[""]:
                    yield place(path, node, ast.unparse(node))


COUNTERS: dict[str, Callable[[], Iterator[str]]] = dict(
    zip(
        LIMITS,
        (
            kind_switches,
            kind_lists,
            method_lists,
            unchecked_imports,
            excepted_imports,
            long_modules,
            crowded_folders,
            dialect,
            second_readers,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("what", LIMITS)
def test_there_is_no_more_of_it(what):
    places = list(COUNTERS[what]())
    limit = LIMITS[what]
    assert len(places) <= limit, f"{len(places)} {what}, and there may be {limit}:\n" + "\n".join(places)
    if len(places) < limit:
        warnings.warn(f"{what} have fallen from {limit} to {len(places)}: lower the number in LIMITS", stacklevel=1)


SINS = """
from slimformer.methods.mask import mask
from slimformer.methods.quantize import quantize  # noqa: F401
import scipy  # type: ignore[import-untyped]
from json import loads

MODELLING = ("language-modelling", "last-word")
COMMANDS = {"mask": mask, "distill": None}

def of(kind, given):
    found = kind == "tagging" or kind in MODELLING
    match kind:
        case "regression" | "similarity":
            return given
    return found

def read(path):
    return json.loads(path.expanduser().read_text()), csv.reader(path.open())
"""
SEEN = {
    "switches on the kind of a task outside tasks/kinds": 3,
    "lists and tables of kinds outside tasks/kinds and tasks/presets": 1,
    "lists of methods outside the registry": 2,
    "checks switched off for an import": 2,
    "modules of more than 300 lines": 1,
    "modules beyond the twelfth of a folder": 2,
    "values named in the dialect": 2,
    "ways of reading paths, JSON and CSV outside files.py": 4,
}


@pytest.mark.parametrize("what", SEEN)
def test_what_is_counted(what, tmp_path, monkeypatch):
    (tmp_path / "tasks" / "kinds").mkdir(parents=True)
    (tmp_path / "tasks" / "kinds" / "tagging.py").write_text('IS = lambda kind: kind == "tagging"\n')
    (tmp_path / "sins.py").write_text(SINS)
    (tmp_path / "tall.py").write_text("\n" * (LONG + 1))
    for number in range(MANY):
        (tmp_path / f"m{number}.py").write_text("\n" * LONG)
    monkeypatch.setattr("tests.test_ratchets.SOURCES", tmp_path)
    assert len(list(COUNTERS[what]())) == SEEN[what]
