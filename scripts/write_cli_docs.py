"""Writes docs/cli.md from the commands' own help. `--check` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from skep.cli.reference import cli_reference

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"


def main() -> int:
    text = cli_reference()
    if "--check" in sys.argv:
        return 0 if TARGET.read_text() == text else 1
    TARGET.write_text(text)
    print(f"wrote {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
