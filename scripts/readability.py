"""Count what makes Python hard to read: how much a line says, names that say nothing, functions
with many ways through.

How each number is counted, of src/skep and of tests:

- nodes: nodes of the syntax tree, by package: what the code says, however many lines it takes.
- density: nodes a code line. A code line is neither blank nor a comment nor part of a docstring.
- long lines: code lines of 100 characters and more.
- joined assignments: `a, b = x, y`, several values side by side, for 1,000 code lines.
- conditional expressions: `x if y else z`, for 1,000 code lines; nested ones hold another one.
- empty names: parameters, variables and attributes whose name is a word of `EMPTY_WORDS`, of 100
  bindings.
- format skips: `# fmt: skip` and `# fmt: off` beside anything but a table of literals.
- complex functions: those with more than 15 ways through (McCabe), all that stands between their
  first line and last.
- long tests: test functions with 8 asserts or more. Long names: test functions of more than 80
  letters.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONG_LINE = 100
MOST_WAYS = 15
MOST_ASSERTS = 7
LONGEST_TEST_NAME = 80
DENSE = 10.0  # nodes a line that a module should not exceed
EMPTY_WORDS = frozenset(
    """
    asked came data2 each every found gone here it kept known least left less made more most much one other own said
    seen shown stuff such there thing things three told took two wanted went what which
    """.split()  # noqa: SIM905 - a list of words is read more easily
)
BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.With,
    ast.AsyncWith, ast.Assert, ast.comprehension, ast.match_case,
)  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TABLES = (ast.List, ast.Tuple, ast.Dict, ast.Set)
LITERALS = (
    ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Name, ast.Attribute, ast.UnaryOp,
    ast.Load, ast.USub,
)  # fmt: skip
FORMAT_SKIP = re.compile(r"#\s*fmt:\s*(skip|off)")


@dataclass(slots=True)
class TreeCounts:
    """What is counted of one tree of modules."""

    code_lines: int = 0
    # By package; "(root)": the modules beside the packages.
    nodes: Counter[str] = field(default_factory=Counter)
    long_lines: int = 0
    joined_assignments: int = 0
    conditional_expressions: int = 0
    nested_conditionals: int = 0
    bindings: int = 0
    empty_names: int = 0
    format_skips: int = 0
    long_test_names: int = 0
    dense_modules: dict[str, float] = field(default_factory=dict)  # module: nodes a line
    # module.function: ways through.
    complex_functions: dict[str, int] = field(default_factory=dict)
    long_tests: dict[str, int] = field(default_factory=dict)  # module.test: asserts

    def rates(self) -> dict[str, float]:
        """Return the numbers that are only to fall, the first four by what there is to read."""
        lines = max(1, self.code_lines)
        return {
            "density": round(self.nodes.total() / lines, 2),
            "joined_assignments": round(1000 * self.joined_assignments / lines, 1),
            "conditional_expressions": round(1000 * self.conditional_expressions / lines, 1),
            "empty_names": round(100 * self.empty_names / max(1, self.bindings), 2),
            "long_lines": self.long_lines,
            "nested_conditionals": self.nested_conditionals,
            "format_skips": self.format_skips,
            "long_test_names": self.long_test_names,
        }


def budget_of(counts: TreeCounts) -> dict[str, dict[str, Any]]:
    """Return the numbers of a tree as tables of tests/size_budget.toml, each to be put behind the
    tree's name.
    """
    return {
        "rates": counts.rates(),
        "nodes": dict(sorted(counts.nodes.items())),
        "dense_modules": counts.dense_modules,
        "complex_functions": counts.complex_functions,
        "long_tests": counts.long_tests,
    }


def count_tree(folder: Path) -> TreeCounts:
    counts = TreeCounts()
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder)
        if len(inside.parts) > 1:
            package = inside.parts[0]
        else:
            package = "(root)"
        _count_module(counts, package, ".".join(inside.with_suffix("").parts), path.read_text())
    return counts


def _count_module(counts: TreeCounts, package: str, module: str, text: str) -> None:
    tree = ast.parse(text)
    nodes = _walk(tree)
    lines = text.splitlines()
    numbers = _code_line_numbers(lines, nodes)
    counts.code_lines += len(numbers)
    counts.nodes[package] += len(nodes)
    counts.long_lines += sum(len(lines[number - 1]) >= LONG_LINE for number in numbers)
    density = len(nodes) / max(1, len(numbers))
    if density > DENSE:
        counts.dense_modules[module] = round(density, 1)
    branches = [0] * (len(lines) + 2)
    asserts = [0] * (len(lines) + 2)
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for node in nodes:
        kind = type(node)
        count = COUNTERS.get(kind)
        if count is not None:
            count(counts, node)
        ways = WAYS.get(kind)
        if ways is not None:
            branches[_line_of(node)] += ways(node)
        if kind is ast.Assert:
            asserts[_line_of(node)] += 1
        elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
            functions.append(node)
    for function in functions:
        inside = slice(function.lineno, (function.end_lineno or function.lineno) + 1)
        _count_function(
            counts, f"{module}.{function.name}", 1 + sum(branches[inside]), sum(asserts[inside])
        )
    counts.format_skips += _format_skips(lines, nodes)


def _count_assignment(counts: TreeCounts, node: ast.Assign) -> None:
    is_joined = isinstance(node.value, ast.Tuple) and any(
        isinstance(target, ast.Tuple) for target in node.targets
    )
    counts.joined_assignments += is_joined


def _count_conditional(counts: TreeCounts, node: ast.IfExp) -> None:
    counts.conditional_expressions += 1
    parts = (node.test, node.body, node.orelse)
    counts.nested_conditionals += any(
        isinstance(inner, ast.IfExp) for part in parts for inner in ast.walk(part)
    )


def _count_parameter(counts: TreeCounts, node: ast.arg) -> None:
    _count_name(counts, node.arg)


def _count_variable(counts: TreeCounts, node: ast.Name) -> None:
    if isinstance(node.ctx, ast.Store):
        _count_name(counts, node.id)


def _count_attribute(counts: TreeCounts, node: ast.Attribute) -> None:
    if isinstance(node.ctx, ast.Store):
        _count_name(counts, node.attr)


def _count_name(counts: TreeCounts, name: str) -> None:
    counts.bindings += 1
    counts.empty_names += name.strip("_") in EMPTY_WORDS


def _count_function(counts: TreeCounts, name: str, ways: int, asserts: int) -> None:
    if ways > MOST_WAYS:
        counts.complex_functions[name] = max(ways, counts.complex_functions.get(name, 0))
    test = name.rpartition(".")[2]
    if not test.startswith("test_"):
        return
    if asserts > MOST_ASSERTS:
        counts.long_tests[name] = asserts
    counts.long_test_names += len(test) > LONGEST_TEST_NAME


def _walk(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all below it, in half of the time that `ast.walk` takes."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
    return nodes


def _line_of(node: Any) -> int:
    """Return where it begins; a part of a comprehension, and a case, have no line of their own."""
    if isinstance(node, ast.comprehension):
        return int(node.target.lineno)
    if isinstance(node, ast.match_case):
        return int(node.pattern.lineno)
    return int(node.lineno)


COUNTERS: dict[type[ast.AST], Callable[[TreeCounts, Any], None]] = {
    ast.Assign: _count_assignment,
    ast.IfExp: _count_conditional,
    ast.arg: _count_parameter,
    ast.Name: _count_variable,
    ast.Attribute: _count_attribute,
}
WAYS: dict[type[ast.AST], Callable[[Any], int]] = {
    **{kind: lambda _node: 1 for kind in BRANCHES},
    ast.BoolOp: lambda node: len(node.values) - 1,
}


def _code_line_numbers(lines: list[str], nodes: list[ast.AST]) -> list[int]:
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, DOCUMENTED):
            docstrings.update(_docstring_lines(node))
    stripped = enumerate((line.strip() for line in lines), 1)
    return [
        number
        for number, line in stripped
        if line and not line.startswith("#") and number not in docstrings
    ]


def _docstring_lines(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> range:
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return range(0)
    if not isinstance(first.value.value, str):
        return range(0)
    return range(first.lineno, (first.end_lineno or first.lineno) + 1)


def _format_skips(lines: list[str], nodes: list[ast.AST]) -> int:
    """Count the marks that switch the formatter off where no table of literals ends."""
    marked = {number for number, line in enumerate(lines, 1) if FORMAT_SKIP.search(line)}
    if not marked:
        return 0
    return len(marked - set(_ends_of_tables(nodes)))


def _ends_of_tables(nodes: list[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            is_table = isinstance(node.value, TABLES)
            if is_table and all(isinstance(inner, LITERALS) for inner in ast.walk(node.value)):
                yield node.end_lineno or node.lineno
