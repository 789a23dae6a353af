"""The sandbox's line of `skep doctor`."""

from __future__ import annotations

import asyncio

from skep.errors import UserError
from skep.records import Finding, Verdict
from skep.sandbox.opening import open_sandbox

CHECK = "sandbox"


def sandbox_finding() -> Finding:
    """Opens one, tries it out and closes it: a quarter of a second. A warning, as all but quality works without it."""
    try:
        sandbox = open_sandbox()
    except UserError as error:
        return Finding(CHECK, Verdict.WARNING, error.message, error.hint)
    asyncio.run(sandbox.close())
    return Finding(CHECK, Verdict.OK, f"model-written code is run in {sandbox.name}; a trial in it was kept in")
