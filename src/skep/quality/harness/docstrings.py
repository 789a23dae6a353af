"""docstring: parsed, never run. A docstring alone counts; code that came with it must be the code that was given."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from .blocks import giving, joined
from .link import Link, Report
from .sources import parsed
from .worker import Broken, Say

_SECTION = r"^[ \t]*{}:[ \t]*$"
_HEADINGS = (
    r"^[ \t]*(?:Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?|Attributes|See Also|Todo):[ \t]*$"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def look(job: dict[str, Any], link: Link, report: Report) -> None:
    """What the other process tells is what it read: there no code of the answer runs either."""
    link.send({key: job[key] for key in ("blocks", "text", "values")})
    for one in link.receive()["checks"]:
        report.check(one["name"], one["passed"], one["detail"], decides=one["decides"])


def try_out(job: dict[str, Any], say: Say) -> None:
    values = job["values"]
    blocks = job["blocks"]
    if any(map(giving({values["entry_point"]}), blocks)):
        blocks = [code for code in blocks if parsed(code) is not None] or blocks  # others quote lines of it
    text, given = _docstring(joined(blocks), job["text"], values["entry_point"])
    checks: list[dict[str, Any]] = []

    def check(name: str, passed: bool, detail: str = "", *, decides: bool = True) -> None:
        checks.append({"name": name, "passed": passed, "detail": detail, "decides": decides})

    lines = inspect.cleandoc(text).splitlines()
    summary = lines[0].strip() if lines else ""
    check("it begins with a summary line", bool(summary) and not re.match(_HEADINGS, summary), f"`{summary[:60]}`")
    arguments = _section(lines, "Args")
    check("it has a section Args", arguments is not None, "no line `Args:`")
    for name in values["arguments"]:
        told = re.search(
            rf"^[ \t]+[*`]*{re.escape(name)}[`]*[ \t]*(?:\(.*?\))?[ \t]*:[ \t]*\S", arguments or "", re.MULTILINE
        )
        check(f"Args tells of {name}", told is not None, "not as `name: what it is`")
    returns = _section(lines, "Returns")
    check("it has a section Returns", bool(returns and returns.strip()), "no line `Returns:`, or nothing below it")
    if given is not None:
        _compare_code(given, values["source"], values["entry_point"], check)
    say(checks=checks)


def _docstring(code: str, text: str, entry_point: str) -> tuple[str, Function | None]:
    """The text, and the function that it stood in. Without code: a block or an answer with an `Args:` line."""
    for source in (code, f"{code.rstrip()}\n    pass\n", _dedented(code)):
        tree = parsed(source)
        if tree is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, Function) and node.name == entry_point:
                found = ast.get_docstring(node)
                if found is None:
                    raise Broken(f"`{entry_point}` has no docstring", "wrong")
                return found, node
        for statement in tree.body:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value, None
        break
    for source in (code, text):
        quoted = re.search(r'("""|\'\'\')(.*?)\1', source, re.DOTALL)
        if quoted is not None:
            return quoted[2], None
        if re.search(_SECTION.format("Args"), source, re.MULTILINE):
            return source, None
    raise Broken("no docstring", "no answer")


def _dedented(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


def _section(lines: list[str], name: str) -> str | None:
    """What stands below a heading, up to the next one or to a line that is indented no more than it."""
    for number, line in enumerate(lines):
        if not re.match(_SECTION.format(name), line):
            continue
        below: list[str] = []
        for other in lines[number + 1 :]:
            if other.strip() and _indent(other) <= _indent(line):
                break
            below.append(other)
        return "\n".join(below)
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _compare_code(given: Function, source: str, entry_point: str, check: Any) -> None:
    want = next(
        (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function) and node.name == entry_point), None
    )
    if want is None:
        return
    body, wanted = _without_docstring(given), _without_docstring(want)
    if not body or all(isinstance(one, ast.Pass) or _is_dots(one) for one in body):
        check("the code is left as it was", True, "only the signature was given", decides=False)
        return
    same = _names(given) == _names(want) and [*map(ast.dump, body)] == [*map(ast.dump, wanted)]
    check("the code is left as it was", same, "it is changed")


def _names(node: Function) -> list[str]:
    """Annotations may be added: they say more, and change nothing."""
    return [one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]


def _without_docstring(node: Function) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def _is_dots(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
