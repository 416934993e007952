"""Assertions that hold whatever the code does are worse than none: none is in the tests."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT

FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def idle(source: str) -> list[int]:
    """Lines of assertions that cannot fail: of a constant, of a length from 0, of a share between 0 and 1."""
    asserts = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert))
    return [node.lineno for node in asserts if _is_idle(node.test)]


def _is_idle(test: ast.expr) -> bool:
    if isinstance(test, ast.Constant | ast.Tuple | ast.List | ast.JoinedStr | ast.Lambda | ast.GeneratorExp):
        return True
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "all" and isinstance(test.args[0], ast.GeneratorExp):
        return _is_idle(test.args[0].elt)
    if not isinstance(test, ast.Compare) or not all(isinstance(op, ast.LtE | ast.GtE) for op in test.ops):
        return False
    ends = [each.value for each in (test.left, *test.comparators) if isinstance(each, ast.Constant)]
    length = any("len(" in ast.unparse(each) for each in (test.left, *test.comparators))
    return sorted(ends, key=str) in ([0, 1], [0, 100], [0.0, 1.0]) or (length and ends == [0])


@pytest.mark.parametrize(
    "line",
    [
        "assert True",
        "assert (x == 1, 'why')",
        "assert 0 <= accuracy <= 1",
        "assert 1 >= accuracy >= 0",
        "assert len(rows) >= 0",
        "assert all(0 <= each <= 1 for each in shares)",
    ],
)
def test_an_assertion_that_cannot_fail_is_seen(line):
    assert idle(line) == [1]


@pytest.mark.parametrize("line", ["assert x", "assert 0 < x <= 1", "assert 0 <= x <= limit", "assert len(rows) >= 1"])
def test_others_are_left_alone(line):
    assert idle(line) == []


def test_every_assertion_can_fail():
    found = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for line in idle(path.read_text(encoding="utf-8"))]
    assert len(FILES) > 100
    assert found == []
