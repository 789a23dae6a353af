"""`skep plan --html`: the page of a plan, written to a file."""

from __future__ import annotations

import os
from pathlib import Path

from skep.bench.plan_document import document
from skep.bench.planning import Answer
from skep.cli.output import note
from skep.errors import UserError


def check_page(path: Path) -> None:
    """Before anything is worked out or printed: whether the page can be written there."""
    if path.is_dir():
        raise UserError(f"--html `{path}` is a folder", hint=f"name a file in it: --html {path / 'plan.html'}")
    if not path.parent.is_dir():
        raise UserError(f"--html `{path}`: there is no folder `{path.parent}`", hint="make it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--html `{path}` cannot be written", hint="check its permissions, or name another file")


def write_page(found: Answer, path: Path) -> None:
    from skep.report.plan import plan_page

    path.write_text(plan_page(document(found, explain=True)), encoding="utf-8")
    note(f"wrote {path}")
