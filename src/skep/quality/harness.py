"""The program that judges one answer inside the sandbox, handed over as a file. It imports the
standard library only.

It runs the answer's code, then the item's tests, and reports behind a mark that the code is not
told: whatever code prints, writes to its descriptors or returns on leaving makes no pass. Code
that goes looking for the mark inside its own process can make one."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_DEFINED = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_IMPORTS = (ast.Import, ast.ImportFrom)
_UNITS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Unjudged(Exception):
    """Raised where the tests cannot be tried, or did not pass."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


def run_tests(kind: str, blocks: Sequence[str], values: dict[str, Any]) -> None:
    """Run the answer's code and then the item's tests; raise `Unjudged` unless they pass."""
    for name in values.get("packages", ()):
        importlib.import_module(name)
    entry_point = values.get("entry_point", "")
    tests = values["tests"]
    candidate = ""
    if kind == "completion":
        answer = program(blocks, {entry_point})
        before, code = completed(values["prompt"], entry_point, answer)
        candidate = entry_point
    else:
        before = values.get("before", "")
        required_names = free_names(tests) | {entry_point}
        code = program(blocks, required_names)
    # Some tests read the file or start it.
    file = Path("answer.py")
    file.write_text(code, encoding="utf-8", errors="surrogatepass")
    module = _load(before, code)
    if entry_point and not callable(module.__dict__.get(entry_point)):
        raise Unjudged("wrong", f"there is no function `{entry_point}`")
    _try_tests(module, tests, candidate)


def search(pattern: str, text: str) -> None:
    """Raise `Unjudged` unless the pattern is in the text.

    Python's matcher may backtrack for ever, so it runs here, in a process that can be ended.
    """
    if re.search(pattern, text, re.MULTILINE) is None:
        raise Unjudged("wrong", f"`{pattern}` is not there")


def _load(before: str, code: str) -> types.ModuleType:
    """Return a module made of the answer's code, run after the code `before`.

    Its `__name__` is not `__main__`.
    """
    module = types.ModuleType("answer")
    module.__file__ = "answer.py"
    sys.modules["answer"] = module
    for text, name in ((before, "given.py"), (code, "answer.py")):
        when = ""
        try:
            compiled = compile(text, name, "exec", dont_inherit=True)
            when = ", before it could be tried"
            exec(compiled, module.__dict__)  # noqa: S102 - this is the place for it
        except MemoryError:
            raise Unjudged("exceeded", "out of memory") from None
        except BaseException as error:
            raise Unjudged("broken", f"{described(error)}{when}") from None
    return module


def _try_tests(module: types.ModuleType, tests: str, candidate: str) -> None:
    """Run the item's tests in the module of the answer.

    HumanEval's tests are a function `check`. Others are run as they stand, and their `test_`
    functions too. `test_` functions of the answer are not run; where both define the same name,
    the item's function has replaced the answer's.
    """
    before_tests = dict(module.__dict__)
    try:
        compiled = compile(tests, "tests.py", "exec", dont_inherit=True)
        exec(compiled, module.__dict__)  # noqa: S102 - the item's own
        if candidate:
            check = module.__dict__["check"]
            check(module.__dict__[candidate])
        else:
            functions = [
                name
                for name, function in module.__dict__.items()
                if name.startswith("test_") and before_tests.get(name) is not function
            ]
            for name in functions:
                module.__dict__[name]()
    except MemoryError:
        raise Unjudged("exceeded", "out of memory") from None
    except BaseException as error:
        raise Unjudged("wrong", _failing(error, tests)) from None


def _failing(error: BaseException, tests: str) -> str:
    """Return the error, with the line of the tests that raised it."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    lines = tests.splitlines()
    source = ""
    if 0 < line <= len(lines):
        source = lines[line - 1].strip()
    if source:
        return f"{described(error)} at `{source}`"
    return described(error)


def described(error: BaseException) -> str:
    """Return the error in one line. Its class may be defined by the answer."""
    try:
        if isinstance(error, SyntaxError):
            return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
        text = " ".join(str(error).split())
    except BaseException:
        text = "?"
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def program(blocks: Sequence[str], required_names: set[str]) -> str:
    """Join the blocks of an answer.

    Of blocks that define none of the required names, only definitions and imports count: the rest
    shows how the code is used, or quotes it.
    """
    codes = list(blocks)
    if len(codes) > 1:
        codes = [textwrap.dedent(code) for code in codes]
    defining = [code for code in codes if required_names & _names(code)]
    if defining:
        codes = [code if code in defining else _definitions(code) for code in codes]
    parts = [code.strip("\n") for code in codes if code.strip()]
    joined = "\n\n".join(parts)
    return _as_one_file(f"{joined}\n")


def _definitions(code: str) -> str:
    """Return the code without its expressions, if it defines something or only imports."""
    tree = _parsed(code)
    if tree is None:
        return ""
    has_definitions = any(isinstance(node, _UNITS) for node in tree.body)
    only_imports = all(isinstance(node, _IMPORTS) for node in tree.body)
    if not has_definitions and not only_imports:
        return ""
    statements = [node for node in tree.body if not isinstance(node, ast.Expr)]
    return ast.unparse(ast.Module(statements, []))


def _as_one_file(code: str) -> str:
    """Leave out imports from files of the answer itself, whose names are all there.

    Imports from `__future__` are moved to the beginning.
    """
    tree = _parsed(code)
    if tree is None:
        return code
    names = _names(code)
    lines = code.split("\n")
    futures: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module == "__future__":
            futures += [alias.name for alias in node.names]
        elif not _is_from_answer(node, names):
            continue
        first = node.lineno - 1
        last = node.end_lineno or node.lineno
        indent = " " * node.col_offset
        blank_lines = [""] * (last - node.lineno)
        lines[first:last] = [f"{indent}pass", *blank_lines]
    joined = "\n".join(lines)
    if futures:
        return f"from __future__ import {', '.join(futures)}; {joined}"
    return joined


def _is_from_answer(node: ast.ImportFrom, names: set[str]) -> bool:
    """Return whether an import is from another file of the answer. `names`: all it defines."""
    for alias in node.names:
        if alias.name not in names or alias.asname is not None:
            return False
    if node.level:
        return True
    return not _is_installed(node.module or "")


def _is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    with suppress(ImportError, ValueError):
        return root in sys.stdlib_module_names or find_spec(root) is not None
    return False


def completed(prompt: str, entry_point: str, code: str) -> tuple[str, str]:
    """Return the code to run first, and the code to run then.

    A whole function needs only what stands above it in the prompt.
    """
    function = rf"^(?:@.*\n)*(?:async )?def {re.escape(entry_point)}\b"
    start = re.search(function, prompt, re.MULTILINE)
    above = prompt[: start.start()] if start else ""
    whole = textwrap.dedent(code)
    if _defines(whole, entry_point):
        return above, whole
    for body in _bodies(code):
        text = f"{prompt.rstrip()}\n{body}\n"
        with suppress(*_UNREADABLE):
            compile(text, "answer.py", "exec", dont_inherit=True)
            return "", text
    return above, whole


def _bodies(code: str) -> list[str]:
    """Return the forms that a function's body may have been meant in: as it stands, indented as a
    whole, or with a first line that had lost its indentation.
    """
    code = code.strip("\n")
    first, _, rest = code.partition("\n")
    indented = textwrap.indent(textwrap.dedent(code), "    ")
    with_first_line = f"    {first.strip()}\n{rest}"
    bodies = [indented, with_first_line]
    if code[:1].isspace():
        return [code, *bodies]
    return bodies


def _parsed(code: str) -> ast.Module | None:
    with suppress(*_UNREADABLE):
        return ast.parse(code)
    return None


def _defines(code: str, name: str) -> bool:
    return _parsed(code) is not None and name in _names(code)


def _names(code: str) -> set[str]:
    """Return the names that the top level defines, or would if it could be parsed."""
    tree = _parsed(code)
    if tree is None:
        return set(_DEFINED.findall(code))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, _UNITS):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def free_names(code: str) -> set[str]:
    """Return the names that the code uses but does not define."""
    used: set[str] = set()
    defined = set(vars(builtins))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.id)
        elif isinstance(node, ast.Name):
            defined.add(node.id)
        elif isinstance(node, ast.alias):
            defined.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, _UNITS):
            defined.add(node.name)
    return used - defined


def _reporter(mark: str) -> Callable[[str, str], None]:
    """Return the function that reports the verdict and ends the process.

    The answer's code may change modules, so every function that the report needs is held here.
    """
    process = os.getpid()
    getpid = os.getpid
    leave = os._exit
    write = os.write
    encoded = json.dumps
    output = os.dup(1)

    def report(outcome: str, detail: str) -> None:
        if getpid() == process:
            verdict = encoded({"outcome": outcome, "detail": detail})
            write(output, f"\n{mark}{verdict}\n".encode())
        leave(0)

    return report


def main() -> None:
    os.closerange(3, 256)  # whatever was handed down is not for the answer's code
    os.environ["TMPDIR"] = os.environ["HOME"] = str(Path.cwd())
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    report = _reporter(job.pop("mark"))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the answer's prints go nowhere, and it has nothing to read
        os.dup2(nowhere, stream)
    try:
        if job["kind"] == "regex":
            search(job["values"]["pattern"], job["said"])
        else:
            run_tests(job["kind"], job["blocks"], job["values"])
    except Unjudged as unjudged:
        report(unjudged.outcome, unjudged.detail)
    report("passed", "")


if __name__ == "__main__":
    main()
