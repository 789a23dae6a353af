"""No test holds an assertion that cannot fail.

Ruff finds a tuple (F631), a text (PLW0129), `or True` (SIM222) and a name compared with itself
(PLR0124); here is the rest."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from size import statements

TESTS = Path(__file__).parent


def is_always_true(test):
    """True only where no run of the test could make it false."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.List(elts=parts) | ast.Set(elts=parts):
            return any(not isinstance(part, ast.Starred) for part in parts)
        case ast.Dict(keys=keys):
            return any(key is not None for key in keys)
        case ast.Lambda() | ast.GeneratorExp():
            return True
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(map(is_always_true, parts))
        case ast.UnaryOp(op=ast.Not(), operand=ast.Constant(value=value)):
            return not value
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            return ast.dump(left) == ast.dump(right) and not any(
                isinstance(node, ast.Call) for node in ast.walk(left)
            )
    return False


def hollow_assertions(source):
    """The lines of the `assert` statements that cannot fail."""
    nodes = statements(ast.parse(source))
    return sorted(
        node.lineno for node in nodes if isinstance(node, ast.Assert) and is_always_true(node.test)
    )


@pytest.mark.parametrize(
    ("hollow", "line"),
    [
        *(
            (True, line)
            for line in (
                "True",
                "[found]",
                "{'a': found}",
                "(row.ok for row in rows)",
                "lambda: found",
            )
        ),
        *(
            (True, line)
            for line in ("not False", "found or 'nothing was found'", "found.name == found.name")
        ),
        *(
            (False, line)
            for line in (
                "found",
                "not found",
                "False",
                "''",
                "[*found]",
                "{**found}",
                "found or other",
            )
        ),
        *(
            (False, line)
            for line in (
                "all(row.ok for row in rows)",
                "[row for row in rows if row.ok]",
                "next(rows) == next(rows)",
            )
        ),
    ],
)
def test_an_assertion_that_cannot_fail_is_found(line, hollow):
    assert hollow_assertions(f"assert {line}") == ([1] if hollow else [])


def test_every_assertion_of_the_suite_can_fail():
    hollow = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in hollow_assertions(path.read_text())
    ]
    assert hollow == []
