"""Files that a script writes from the code: written, or with `--check` only compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(files: Mapping[Path, Callable[[], str]]) -> int:
    """Return the exit code: 1 where `--check` found a file that is not up to date."""
    if "--check" in sys.argv:
        return int(any(path.read_text(encoding="utf-8") != text() for path, text in files.items()))
    for path, text in files.items():
        path.write_text(text(), encoding="utf-8")
        print(f"wrote {path.name}")
    return 0
