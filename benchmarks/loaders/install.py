"""One venv per load generator, in the same cache folder as the gateways'.

Begun anew after an interruption.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loaders.base import CouldNotRun, Loader
from peers.install import cache_folder, last_line


def installed(loader: Loader) -> Path | None:
    if loader.package is None:
        return None
    venv = cache_folder() / f"{loader.name}-{loader.version}"
    done = venv / ".installed"
    if not done.exists():
        wanted = [f"{loader.package}=={loader.version}", *loader.extras]
        print(f"installing {' '.join(wanted)} into {venv}", file=sys.stderr, flush=True)
        log = cache_folder() / f"{loader.name}-{loader.version}.log"
        with log.open("wb") as output:
            for argv in (
                [sys.executable, "-m", "venv", "--clear", str(venv)],
                [str(venv / "bin" / "pip"), "install", "--disable-pip-version-check", *wanted],
            ):
                if subprocess.run(
                    argv, stdout=output, stderr=subprocess.STDOUT, check=False
                ).returncode:
                    raise CouldNotRun(f"not installed, see {log}: {last_line(log)}")
        done.touch()
    return venv
