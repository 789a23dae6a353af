"""docs/accuracy.md is what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tables_of_the_accuracy_page_are_those_of_the_points():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_accuracy.py", "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, "run `make docs`" + done.stderr
