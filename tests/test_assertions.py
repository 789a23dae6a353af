"""No test holds an assertion that cannot fail."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def is_always_true(test: ast.expr) -> bool:
    """True only where no run of the test could make it false; what calls or awaits something may always."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.JoinedStr(values=parts):
            return any(isinstance(part, ast.Constant) and part.value for part in parts)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(not isinstance(part, ast.Starred) for part in parts)
        case ast.Dict(keys=keys):
            return any(key is not None for key in keys)
        case ast.Lambda() | ast.GeneratorExp():
            return True
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(map(is_always_true, parts))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(map(is_always_true, parts))
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _is_always_false(inner)
        case ast.NamedExpr(value=inner):
            return is_always_true(inner)
        case ast.IfExp(body=one, orelse=other):
            return is_always_true(one) and is_always_true(other)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.LtE() | ast.GtE()], comparators=[right]):
            return ast.dump(left) == ast.dump(right) and _is_plain(left)
    return False


def _is_always_false(test: ast.expr) -> bool:
    match test:
        case ast.Constant(value=value):
            return not value
        case ast.Tuple(elts=[]) | ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
    return False


def _is_plain(side: ast.expr) -> bool:
    """Read twice it is the same: nothing in it is called, awaited or assigned."""
    moving = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return not any(isinstance(node, moving) for node in ast.walk(side))


def hollow_assertions(source: str) -> list[int]:
    """The lines of the `assert` statements that cannot fail."""
    nodes = ast.walk(ast.parse(source))
    return sorted(node.lineno for node in nodes if isinstance(node, ast.Assert) and is_always_true(node.test))


@pytest.mark.parametrize(
    "line",
    [
        "assert True",
        "assert 'a message where the test should be'",
        "assert f'{found} is wrong'",
        "assert (found == 1, 'with its message inside the brackets')",
        "assert [found]",
        "assert 'http' not in page or True",
        "assert found or 'nothing was found'",
        "assert found.name == found.name",
        "assert rows[0] is rows[0]",
        "assert count <= count",
        "assert (row.ok for row in rows)",
        "assert lambda: found",
        "assert not False",
        "assert not ()",
        "assert {'a': found}",
        "assert (first or True) and 1",
        "assert (found := (1, 2))",
        "assert (1,) if found else 'two'",
    ],
)
def test_an_assertion_that_cannot_fail_is_found(line):
    assert hollow_assertions(line) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "assert found",
        "assert not found",
        "assert False, 'never reached'",
        "assert 0",
        "assert ''",
        "assert f'{found}'",
        "assert ()",
        "assert [*found]",
        "assert {**found}",
        "assert next(moments) == next(moments)",
        "assert await take() is await take()",
        "assert found or other",
        "assert found and True",
        "assert found or False",
        "assert rows[0] == rows[1]",
        "assert count < count",
        "assert low <= found <= low",
        "assert all(row.ok for row in rows)",
        "assert [row for row in rows if row.ok]",
        "assert found if wanted else True",
    ],
)
def test_an_assertion_that_can_fail_is_left_alone(line):
    assert hollow_assertions(f"async def test():\n    {line}") == []


def test_every_assertion_of_the_suite_can_fail():
    hollow = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in hollow_assertions(path.read_text())
    ]
    assert hollow == []
