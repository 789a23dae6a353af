"""python and completion: the answer's code, then tests beside it in the same module."""

from __future__ import annotations

import types
from typing import Any

from .link import Link, Report
from .sources import as_one_file, completed
from .worker import Broken, Say, described, function, load


def look(job: dict[str, Any], link: Link, report: Report) -> None:
    link.send({key: job[key] for key in ("kind", "code", "values")})
    report.note = link.receive().get("note", "")
    told = link.receive()
    report.check("the tests pass", told.get("passed") is True, str(told.get("detail", "")))


def try_out(job: dict[str, Any], say: Say) -> None:
    values = job["values"]
    entry_point = values.get("entry_point")
    before: tuple[str, ...] = ()
    code, note = job["code"], ""
    if job["kind"] == "completion":
        before, code, note = completed(values["prompt"], entry_point, code)
    module = load(as_one_file(code), *before)
    say(note=note)
    if entry_point is not None:
        function(module, entry_point)
    say(**_tested(module, values["tests"], entry_point if job["kind"] == "completion" else None))


def _tested(module: types.ModuleType, tests: str, candidate: str | None) -> dict[str, Any]:
    """HumanEval's tests are a function `check`; others are run as they stand, and their `test_` functions too."""
    known = set(module.__dict__)
    try:
        exec(compile(tests, "tests.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the item's own
        if candidate is not None:
            module.__dict__["check"](module.__dict__[candidate])
        else:
            for name in [n for n in module.__dict__ if n.startswith("test_") and n not in known]:
                module.__dict__[name]()
    except MemoryError:
        raise Broken("out of memory", "exceeded") from None
    except BaseException as error:
        return {"passed": False, "detail": _failing(error, tests)}
    return {"passed": True}


def _failing(error: BaseException, tests: str) -> str:
    """The error, and the line of the tests that met it."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    source = tests.splitlines()[line - 1].strip() if 0 < line <= len(tests.splitlines()) else ""
    return f"{described(error)} at `{source}`" if source else described(error)
