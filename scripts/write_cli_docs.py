"""Writes docs/cli.md and docs/json.md from the commands and the records. `--check` says whether they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from skep.cli.reference import cli_reference
from skep.report.schemas import json_reference

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {DOCS / "cli.md": cli_reference, DOCS / "json.md": json_reference}


def main() -> int:
    if "--check" in sys.argv:
        return 0 if all(page.read_text() == text() for page, text in PAGES.items()) else 1
    for page, text in PAGES.items():
        page.write_text(text())
        print(f"wrote {page.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
