"""python and completion: the answer's code, then tests beside it in the same module."""

from __future__ import annotations

import importlib
import re
import textwrap
import types
from pathlib import Path
from typing import Any

from .blocks import chosen, free_names, giving, joined
from .link import CheckReport, WorkerLink
from .sources import above, as_one_file, completed
from .worker import Broken, Say, described, function, load


def look(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    link.send({key: job[key] for key in ("kind", "blocks", "values")})
    report.note = link.receive().get("note", "")
    told = link.receive()
    report.check("the tests pass", told.get("passed") is True, str(told.get("detail", "")))


def try_out(job: dict[str, Any], say: Say) -> None:
    values = job["values"]
    for name in values.get("packages", ()):  # once for all that is tried: they may take seconds
        importlib.import_module(name)
    entry_point = values.get("entry_point")
    before: tuple[str, ...] = (values["before"],) if "before" in values else ()
    if job["kind"] == "completion":
        before, code, note = _completion(values["prompt"], entry_point, job["blocks"])
    else:
        code, note = chosen(job["blocks"], giving(free_names(values["tests"]) | {entry_point}), *before)
    say(note=note)
    code = as_one_file(code)
    Path("answer.py").write_text(code, encoding="utf-8", errors="surrogatepass")  # for tests that start it anew
    module = load(code, *before)
    if entry_point is not None:
        function(module, entry_point)
    say(**_tested(module, values["tests"], entry_point if job["kind"] == "completion" else None))


def _completion(prompt: str, entry_point: str, blocks: list[str]) -> tuple[tuple[str, ...], str, str]:
    """A whole function with what belongs to it; or else a body: all that look like parts of one, or the one that is."""
    wanted = giving({entry_point})
    if any(wanted(textwrap.dedent(code)) for code in blocks):
        code, left_out = chosen(blocks, wanted, above(prompt, entry_point))
        before, code, note = completed(prompt, entry_point, code)
        return before, code, "; ".join(filter(None, (note, left_out)))
    bodies = [code for code in blocks if re.search(r"\b(?:return|yield|import)\b", code)] or blocks
    for code in [joined(bodies), *bodies, joined(blocks)]:
        before, text, note = completed(prompt, entry_point, code)
        if note:
            return before, text, note
    return completed(prompt, entry_point, joined(blocks))


def _tested(module: types.ModuleType, tests: str, candidate: str | None) -> dict[str, Any]:
    """HumanEval's tests are a function `check`; others are run as they stand, and their `test_` functions too.

    Those of the answer are not run; where both have one of the same name, the item's has taken its place.
    """
    known = dict(module.__dict__)
    try:
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the item's own
        if candidate is not None:
            module.__dict__["check"](module.__dict__[candidate])
        else:
            for name in [n for n, one in module.__dict__.items() if n.startswith("test_") and known.get(n) is not one]:
                module.__dict__[name]()
    except MemoryError:
        raise Broken("out of memory", "exceeded") from None
    except BaseException as error:
        return {"passed": False, "detail": _failing(error, tests)}
    return {"passed": True}


def _failing(error: BaseException, tests: str) -> str:
    """Return the error, and the line of the tests that met it."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    source = tests.splitlines()[line - 1].strip() if 0 < line <= len(tests.splitlines()) else ""
    return f"{described(error)} at `{source}`" if source else described(error)
