"""cases: a function called on arguments. What should come out is known only to the process that compares."""

from __future__ import annotations

import copy
from typing import Any

from .blocks import chosen, giving
from .link import CheckReport, WorkerLink
from .sources import as_one_file
from .values import alike, decoded, encoded, shown
from .worker import Say, described, function, load


def look(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    values = job["values"]
    cases, raises = list(values.get("cases", ())), list(values.get("raises", ()))
    calls = [case[0] for case in cases] + raises
    link.send({"blocks": job["blocks"], "entry_point": values["entry_point"], "calls": calls})
    report.note = link.receive().get("note", "")
    for number, arguments in enumerate(calls):
        name = f"{values['entry_point']}{shown_call(arguments)}"
        told = link.receive()
        raised = told.get("raised")
        if number >= len(cases):
            report.check(f"{name} raises", raised is not None, "it does not")
        elif raised is not None:
            report.check(name, passed=False, detail=f"raised {raised}")
        else:
            want, have = cases[number][1], decoded(told.get("value"))
            report.check(name, alike(want, have), f"gave {shown(have)}, not {shown(want)}")


def shown_call(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return f"({', '.join(f'{key}={shown(value)}' for key, value in arguments.items())})"[:120]
    return f"({', '.join(shown(value) for value in arguments)})"[:120]


def try_out(job: dict[str, Any], say: Say) -> None:
    """Arguments are copied for each call, so that one that is changed does not spoil the next."""
    code, note = chosen(job["blocks"], giving({job["entry_point"]}))
    say(note=note)
    entry = function(load(as_one_file(code)), job["entry_point"])
    for arguments in copy.deepcopy(job["calls"]):
        try:
            value = entry(**arguments) if isinstance(arguments, dict) else entry(*arguments)
            told = {"value": encoded(value)}
        except MemoryError:
            raise
        except BaseException as error:
            told = {"raised": described(error)}
        say(**told)
