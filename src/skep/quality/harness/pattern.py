"""regex: searched for in a process that can be ended. Python's matcher backtracks: some patterns take for ever."""

from __future__ import annotations

import re
from typing import Any

from .link import CheckReport, WorkerLink
from .worker import Broken, Say


def look(job: dict[str, Any], link: WorkerLink, report: CheckReport) -> None:
    """No code of the answer runs, so what the other process tells is so."""
    pattern = job["values"]["pattern"]
    link.send({"pattern": pattern, "said": job["said"]})
    report.check(f"`{pattern}` is found", link.receive()["found"], "it is not there")


def try_out(job: dict[str, Any], say: Say) -> None:
    try:
        pattern = re.compile(job["pattern"], re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Broken(f"the item's pattern is none: {error}") from None
    say(found=pattern.search(job["said"]) is not None)
