"""Answers as source text: a body made a function again, imports that lead nowhere."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from importlib.util import find_spec

Unit = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def completed(prompt: str, entry_point: str, code: str) -> tuple[tuple[str, ...], str, str]:
    """What to run first, what then, and a remark. A whole function needs only what stands above it in the prompt."""
    whole = textwrap.dedent(code)
    if _defines(whole, entry_point):
        return (above(prompt, entry_point),), whole, ""
    for body in _bodies(code):
        if _compiles(text := f"{prompt.rstrip()}\n{body}\n") and _defines(text, entry_point):
            return (), text, "a body alone"
    return (above(prompt, entry_point),), whole, ""


def above(prompt: str, entry_point: str) -> str:
    start = re.search(rf"^(?:@.*\n)*(?:async )?def {re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return prompt[: start.start()] if start else ""


def _bodies(code: str) -> list[str]:
    """Return the body as it stands, moved in as a whole, or with a first line that had lost its indentation."""
    code = code.strip("\n")
    first, _, rest = code.partition("\n")
    return [
        *([code] if code[:1].isspace() else []),
        textwrap.indent(textwrap.dedent(code), "    "),
        f"    {first.strip()}\n{rest}",
        f"    {first.strip()}\n{textwrap.indent(textwrap.dedent(rest), '    ')}",
    ]


def _compiles(code: str) -> bool:
    try:
        compile(code, "answer.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(code: str, name: str) -> bool:
    tree = parsed(code)
    return tree is not None and name in names_of(tree)


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that the top level defines, also under `if` and `try`."""
    found: set[str] = set()
    for node in _top(tree.body):
        found |= set(named(node))
    return found


def _top(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            found += _top(node.body) + _top(node.orelse)
    return found


def named(node: ast.stmt) -> tuple[str, ...]:
    """Return the names that a statement at the top level gives a value, imports apart."""
    if isinstance(node, Unit):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()


def as_one_file(code: str, others: frozenset[str] = frozenset()) -> str:
    """An answer in several files is joined into one: imports of its own files are left out, if all they name is there,
    or among `others`.

    Line numbers stay as they are, unless an import of `__future__` had to be moved to the top.
    """
    tree = parsed(code)
    if tree is None:
        return code
    have = names_of(tree) | others
    lost = [
        node
        for node in _top(tree.body)
        if isinstance(node, ast.ImportFrom)
        and all(alias.name in have and alias.asname is None for alias in node.names)
        and (node.level or not is_installed(node.module or ""))
    ]
    late = _late_futures(tree)
    names = ", ".join(dict.fromkeys(alias.name for node in late for alias in node.names))
    head = f"from __future__ import {names}\n" if late else ""
    return head + _blanked(code, [*lost, *late])


def _late_futures(tree: ast.Module) -> list[ast.ImportFrom]:
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    first = 1 if ast.get_docstring(tree) is not None else 0
    return futures if tree.body[first : first + len(futures)] != futures else []


def _blanked(code: str, nodes: list[ast.ImportFrom]) -> str:
    lines = code.split("\n")
    for node in nodes:
        last = node.end_lineno or node.lineno
        lines[node.lineno - 1 : last] = [" " * node.col_offset + "pass"] + [""] * (last - node.lineno)
    return "\n".join(lines) if nodes else code


def is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return True
    try:
        return bool(root) and find_spec(root) is not None
    except (ImportError, ValueError):
        return False
