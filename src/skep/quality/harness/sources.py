"""Answers as source text: a body made a function again, imports that lead nowhere, and of an answer in several blocks
which are the program, and which only quote it or show how it is used.

Blocks are tried in order, in one namespace, in a process apart: one that ends it, hangs or spoils something does no
harm. A block that raises is left out, unless it gives what was asked for: then it is judged as it stands.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from .link import Broken, Say, WorkerLink, described, teller

Wanted = Callable[[str], bool]
# With one block, by the number of those that hung; an example that waits for somebody is left out, a program is not.
_PATIENCE_S = (3.0, 1.0, 1.0, 1.0)
_DEFINED = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
Unit = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def completed(prompt: str, entry_point: str, code: str) -> tuple[tuple[str, ...], str, str]:
    """What to run first, what then, and a remark. A whole function needs only what stands above it in the prompt."""
    whole = textwrap.dedent(code)
    if _defines(whole, entry_point):
        return (above(prompt, entry_point),), whole, ""
    for body in _bodies(code):
        text = f"{prompt.rstrip()}\n{body}\n"
        with suppress(*_UNREADABLE):
            compile(text, "answer.py", "exec", dont_inherit=True)
            if _defines(text, entry_point):
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


def parsed(code: str) -> ast.Module | None:
    with suppress(*_UNREADABLE):
        return ast.parse(code)
    return None


def _defines(code: str, name: str) -> bool:
    tree = parsed(code)
    return tree is not None and name in names_of(tree)


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that the top level defines, also under `if` and `try`."""
    return {name for node in _top(tree.body) for name in named(node)}


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
    return (node.target.id,) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ()


def as_one_file(code: str, others: frozenset[str] = frozenset()) -> str:
    """Join several files: imports of its own files are left out, if all they name is there, or among `others`.

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
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    first = 1 if ast.get_docstring(tree) is not None else 0
    late = futures if tree.body[first : first + len(futures)] != futures else []
    lines = code.split("\n")
    for node in (*lost, *late):
        last = node.end_lineno or node.lineno
        lines[node.lineno - 1 : last] = [" " * node.col_offset + "pass"] + [""] * (last - node.lineno)
    names = ", ".join(dict.fromkeys(alias.name for node in late for alias in node.names))
    return (f"from __future__ import {names}\n" if late else "") + "\n".join(lines)


def is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return True
    try:
        return bool(root) and find_spec(root) is not None
    except (ImportError, ValueError):
        return False


def giving(names: set[str]) -> Wanted:
    """Blocks that define one of these names, or would if they could be parsed."""
    return lambda code: bool(names & _given(code))


def free_names(code: str) -> set[str]:
    """Return the names that the code uses but does not define."""
    tree = parsed(code)
    used: set[str] = set()
    own = set(vars(builtins))
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.alias):
            own.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, Unit):
            own.add(node.name)
    return used - own


def _given(code: str) -> set[str]:
    tree = parsed(code)
    return set(_DEFINED.findall(code)) if tree is None else names_of(tree)


def joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(code.strip("\n") for code in blocks) + "\n"


def chosen(blocks: Sequence[str], wanted: Wanted, *before: str) -> tuple[str, str]:
    """The program, a remark on what was left out (nothing, if none gives what was asked for). `before` runs first."""
    blocks = [textwrap.dedent(code) for code in blocks] if len(blocks) > 1 else list(blocks)
    asked = {number for number, code in enumerate(blocks) if wanted(code)}
    if len(blocks) < 2 or not asked:
        return joined(blocks), ""
    everything = frozenset(name for code in blocks for name in _given(code))
    out = {n: "is not Python" for n, code in enumerate(blocks) if n not in asked and parsed(code) is None}
    order: list[int] = []
    for patience_s in _PATIENCE_S:
        todo = [n for n, code in enumerate(blocks) if n not in out and parsed(code) is not None]
        told, stuck = _tried([(n, as_one_file(blocks[n], everything), n in asked) for n in todo], before, patience_s)
        order = [n for n, _error in told]
        out |= {n: error for n, error in told if error and n not in asked}
        if stuck is None or stuck[0] in asked:
            break
        out[stuck[0]] = stuck[1]
    order += [n for n in range(len(blocks)) if n not in order]
    some = "a block that" if len(out) == 1 else f"{len(out)} blocks, the first of which"
    remark = f"left out: {some} {out[min(out)]}" if out else ""
    return joined([blocks[n] for n in order if n not in out]), remark


def _tried(
    todo: list[tuple[int, str, bool]], before: tuple[str, ...], patience_s: float
) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
    """Return what each block did, in the order in which they ran; and the one where it came to an end, and how."""
    reading, writing = os.pipe()
    token = os.urandom(16).hex().encode()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            _BlockRunner(todo, teller(token, writing)).run(before)
        finally:
            os._exit(0)
    os.close(writing)
    told: list[tuple[int, str]] = []
    begun: list[int] = []
    how, link = "", WorkerLink(pid, reading, patience_s, token)
    try:
        while len(told) < len(todo):
            message = link.receive()
            if "error" in message:
                told.append((message["number"], message["error"]))
            else:
                begun.append(message["number"])
            link.renew(patience_s)
    except Broken as ended:
        how = "did not come to an end" if ended.outcome == "exceeded" else "ended its process"
    finally:
        link.kill(wait=True)
        os.close(reading)
    done = {number for number, _error in told}
    stuck = next((number for number in reversed(begun) if number not in done), None)
    return told, None if stuck is None or not how else (stuck, how)


class _BlockRunner:
    """Runs in the process apart. A block that failed leaves no names behind."""

    def __init__(self, todo: list[tuple[int, str, bool]], say: Say) -> None:
        self._todo, self._say = todo, say
        self._late: set[int] = set()
        self._solid: set[str] = set()  # names of blocks with functions or classes
        self._module = types.ModuleType("answer")
        self._module.__file__ = "answer.py"
        sys.modules["answer"] = self._module

    def run(self, before: tuple[str, ...]) -> None:
        held = self._module.__dict__
        with suppress(BaseException):
            for text in before:
                exec(compile(text, "given.py", "exec", dont_inherit=True), held)  # noqa: S102 - the sandbox is for it
        self._solid |= set(held) if before else set()
        while self._todo:
            number, code, asked = self._todo.pop(0)
            self._say(number=number)
            names = dict(held)
            error = self._failed(code, asked, names)
            if error is None:
                self._say(number=number, error="")
                continue
            held.clear()
            held.update(names)
            # Files may come in any order: what is missing is defined later, and nothing of this block is.
            later: set[str] = set().union(*(_given(text) for _, text, _ in self._todo))
            can_wait = isinstance(error, NameError) and error.name in later and not later & _given(code)
            if can_wait and number not in self._late:
                self._late.add(number)
                self._todo.append((number, code, asked))
            else:
                self._say(number=number, error=error if isinstance(error, str) else f"raised {described(error)}")

    def _failed(self, code: str, asked: bool, names: dict[str, Any]) -> BaseException | str | None:
        held = self._module.__dict__
        try:
            exec(compile(code, "answer.py", "exec", dont_inherit=True), held)  # noqa: S102 - as above
        except BaseException as error:
            return error
        tree = parsed(code)
        if asked or (tree is not None and any(isinstance(node, Unit) for node in tree.body)):
            self._solid |= {name for name, value in held.items() if names.get(name) is not value}
        elif any(held.get(name) is not names.get(name) for name in self._solid & set(names)):
            return "overwrites names of the program"
        return None
