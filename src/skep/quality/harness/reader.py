"""async-reader: what the synchronous reader returns or raises for a file, the coroutine must too."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import types
from pathlib import Path
from typing import Any

from .blocks import chosen, giving
from .link import Link, Report
from .sources import as_one_file
from .values import alike, decoded, encoded, shown
from .worker import Broken, Say, described, function, load

FILES = {
    "a short file": "first line\nsecond line\n",
    "an empty file": "",
    "a file without a last line's end": "one\n\n  two  \nthree",
    "a file that is not ASCII": "naïve café, 東京, Ω\n😀\n",
    "a long file": "".join(f"line {number} = of many\n" for number in range(2000)),
}
MISSING = "a file that is missing"


def look(job: dict[str, Any], link: Link, report: Report) -> None:
    """The synchronous reader is ours: it runs here, where the answer's code cannot change what it says."""
    values = job["values"]
    names = {what: f"file{number}.txt" for number, what in enumerate([*FILES, MISSING])}
    for what, text in FILES.items():
        Path(names[what]).write_text(text, encoding="utf-8")
    given = types.ModuleType("given")
    exec(compile(values["sync"], "given.py", "exec"), given.__dict__)  # noqa: S102 - our own
    reads = given.__dict__[values.get("sync_entry_point", values["entry_point"])]
    link.send({"blocks": job["blocks"], "entry_point": values["entry_point"], "files": list(names.values())})
    report.note = link.receive().get("note", "")
    report.check(f"`{values['entry_point']}` is a coroutine function", link.receive()["coroutine"], "it is not")
    blocked = False
    for what, name in names.items():
        told = link.receive()
        blocked = blocked or bool(told.get("blocked"))
        try:
            want: Any = {"value": decoded(encoded(reads(name)))}
        except Exception as error:
            want = {"raised": type(error).__name__}
        _compare(report, what, want, told)
    report.check("files are not opened in the event loop", not blocked, "it stands still meanwhile")


def _compare(report: Report, what: str, want: dict[str, Any], told: dict[str, Any]) -> None:
    raised = told.get("raised")
    if "raised" in want:
        detail = f"raised {raised}" if raised else "raised nothing"
        report.check(f"{what} raises {want['raised']}", want["raised"] in told.get("classes", ()), detail)
    elif raised is not None:
        report.check(f"{what} is read", passed=False, detail=f"raised {raised}")
    else:
        have = decoded(told.get("value"))
        report.check(f"{what} is read", alike(want["value"], have), f"gave {shown(have)}, not {shown(want['value'])}")


def try_out(job: dict[str, Any], say: Say) -> None:
    code, note = chosen(job["blocks"], giving({job["entry_point"]}))
    say(note=note)
    entry = function(load(as_one_file(code)), job["entry_point"])
    say(coroutine=inspect.iscoroutinefunction(entry))
    blocking = Blocking()
    sys.addaudithook(blocking.heard)
    for name in job["files"]:
        blocking.watch(name)
        try:
            told = {"value": encoded(asyncio.run(_awaited(entry, name)))}
        except MemoryError:
            raise Broken("out of memory", "exceeded") from None
        except BaseException as error:
            told = {"raised": described(error), "classes": [kind.__name__ for kind in type(error).__mro__]}
        say(**told, blocked=blocking.seen)


async def _awaited(entry: Any, name: str) -> Any:
    found = entry(name)
    return await found if inspect.isawaitable(found) else found


class Blocking:
    """Hears of files opened by the thread that the event loop runs in."""

    def __init__(self) -> None:
        self.seen = False
        self._name = ""
        self._thread = threading.get_ident()

    def watch(self, name: str) -> None:
        self.seen, self._name = False, name

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and threading.get_ident() == self._thread and str(arguments[0]).endswith(self._name):
            self.seen = True
