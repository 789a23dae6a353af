"""Whether a page can be written where somebody wants it."""

from __future__ import annotations

import os
from pathlib import Path

from skep.errors import UserError


def check_page(path: Path) -> None:
    """Raise UserError if the page cannot be written there. Called before anything is planned or printed."""
    if path.is_dir():
        raise UserError(f"--html `{path}` is a folder", hint=f"name a file in it: --html {path / 'plan.html'}")
    if not path.parent.is_dir():
        raise UserError(f"--html `{path}`: there is no folder `{path.parent}`", hint="make it, or name another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--html `{path}` cannot be written", hint="check its permissions, or name another file")
