"""Where an engine's program is, and which version: without importing it, for torch alone takes
many seconds.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import msgspec

from skep.errors import UserError
from skep.files import write_whole
from skep.paths import user_paths

VERSION_TIMEOUT_S = 20.0
VARIABLES = {  # that name the program where it is not on PATH
    "vllm": "SKEP_VLLM",
    "sglang": "SKEP_SGLANG_PYTHON",
    "llamacpp": "SKEP_LLAMA_SERVER",
    "ollama": "SKEP_OLLAMA",
}
_METADATA = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


class EngineKind(msgspec.Struct, frozen=True):
    """One engine of `engines.toml`, where the fields are explained."""

    title: str = ""
    program: str = ""
    image: str = ""
    image_port: int = 0
    install: str = ""
    distributions: tuple[str, ...] = ()
    module: str | None = None
    command: tuple[str, ...] = ()
    helps: tuple[tuple[str, ...], ...] = ()
    abbreviates: bool = False
    package: str = ""
    disk_gib: int = 0
    refused: dict[str, tuple[str, str]] = {}


@cache
def engine_kinds() -> dict[str, EngineKind]:
    text = files("skep.engines").joinpath("engines.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, EngineKind])


class Program(msgspec.Struct, frozen=True):
    """A program that was found. `argv` is what stands before its own flags."""

    engine: str
    path: Path
    argv: tuple[str, ...]

    @property
    def stamp(self) -> int:
        """Another one, once it was installed anew."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0


def is_installed(engine: str, binary: str | None = None) -> bool:
    try:
        find_program(engine, binary)
    except UserError:
        return False
    return True


def find_program(
    engine: str, binary: str | None = None, environ: Mapping[str, str] = os.environ
) -> Program:
    """The launch's own, the variable's, the one on PATH, beside this interpreter, or that skep
    installed.
    """
    kind = engine_kinds()[engine]
    variable = VARIABLES[engine]
    for given, origin in ((binary, "binary"), (environ.get(variable), f"${variable}")):
        if given:
            found = _runnable(given, environ)
            if found is None:
                raise UserError(
                    f"{engine}: there is no program `{given}` ({origin})", hint=kind.install
                )
            return _program(engine, found)
    beside = Path(sys.executable).parent / kind.program
    own = engine_folder(engine, environ) / "bin" / kind.program
    found = next(
        filter(None, (_runnable(name, environ) for name in (kind.program, str(beside), str(own)))),
        None,
    )
    if (
        found is None
        and kind.module is not None
        and find_spec(kind.module.partition(".")[0]) is not None
    ):
        found = Path(sys.executable)
    if found is None:
        if kind.program == engine:
            name = engine
        else:
            name = f"`{kind.program}`"
        raise UserError(f"{name} is not installed", hint=kind.install)
    return _program(engine, found)


def engine_folder(engine: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where `skep engine install` puts it."""
    return user_paths(environ).data / "engines" / engine


def bare_words(engine: str, binary: str | None = None) -> tuple[str, ...]:
    """Return the words of a command line that somebody will type: nothing is looked for."""
    kind = engine_kinds()[engine]
    if kind.module is not None:
        return (binary or "python", "-m", kind.module)
    return (binary or kind.program, *kind.command)


def _runnable(name: str, environ: Mapping[str, str]) -> Path | None:
    found = shutil.which(os.path.expanduser(name), path=environ.get("PATH"))  # noqa: PTH111 - which takes a string
    return Path(found).absolute() if found else None


def _program(engine: str, path: Path) -> Program:
    kind = engine_kinds()[engine]
    if kind.module is None:
        return Program(engine, path, (str(path), *kind.command))
    if path.name == kind.program:
        python = interpreter_of(path)
    else:
        python = str(path)
    return Program(engine, path, (python, "-m", kind.module) if python else (str(path), "serve"))


def interpreter_of(script: Path) -> str | None:
    """Which Python runs this script, from its first lines: pip writes two where the path is long.

    None: no Python's.
    """
    try:
        with script.open("rb") as file:
            head = file.read(2048).decode("utf-8", "replace")
    except OSError:
        return None
    found = re.match(r"#!\s*(?:\S*/env\s+)?(\S*python\S*)", head) or re.match(
        r"#!/bin/sh\n'+exec' (\S+)", head
    )
    return found[1].strip("\"'") if found else None


def version_of(program: Program) -> str | None:
    """As `llama.cpp b11434-1a2b3c4` or `vllm 0.19.1`; None: it does not tell."""
    return _version(program, program.stamp)


@lru_cache(maxsize=64)
def _version(program: Program, _stamp: int) -> str | None:
    names = engine_kinds()[program.engine].distributions
    if names:
        if program.argv[1:2] == ("-m",):
            python: str | None = program.argv[0]
        else:
            python = interpreter_of(program.path)
        if python:
            told = run_quietly([python, "-c", _METADATA, *names], VERSION_TIMEOUT_S)
        else:
            told = None
        if told and told.strip():
            return f"{program.engine} {told.strip()}"
        return None
    told = run_quietly([str(program.path), "--version"], VERSION_TIMEOUT_S)
    if told:
        return parse_version(program.engine, told)
    return None


def parse_version(engine: str, told: str) -> str | None:
    """From what llama-server and ollama print for `--version`.

    The client's own counts: it is what will be started.
    """
    if engine == "llamacpp":
        found = re.search(r"version: (\d+) \((\w+)\)", told) or re.search(
            r"build (\d+), commit (\w+)", told
        )
        other = re.search(r"version: (\S+)", told)
        if found:
            return f"llama.cpp b{found[1]}-{found[2]}"
        if other:
            return f"llama.cpp {other[1]}"
        return None
    found = re.search(r"client version is (\S+)", told) or re.search(r"version is (\S+)", told)
    return f"ollama {found[1]}" if found else None


def run_quietly(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> str | None:
    """Return what it printed, both streams; None where it does not run, fails,
    or takes too long.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            env=None if environ is None else {**os.environ, **environ},
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace")
    return None


HELP_TIMEOUT_S = 180.0
LIKE = 0.75  # from here on, one flag is a likely slip of another
FEWEST = 15  # a help with fewer flags is none: an error, or a list of groups
_INDENT = 4  # at most, before a flag's own line; its description stands deeper
_ENTRY = re.compile(rf"^ {{0,{_INDENT}}}(?=--?[A-Za-z])")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_REMOVED = "has been removed"  # llama.cpp goes on listing what it refuses


def parse_flags(text: str) -> frozenset[str]:
    """Return the flags of argparse's or llama.cpp's help; what a description mentions does not
    count.
    """
    flags: set[str] = set()
    entry: list[str] = []
    for line in text.splitlines():
        if _ENTRY.match(line):
            # llama.cpp aligns its flags with blanks after commas; other runs of blanks end them.
            entry = _FLAG.findall(re.split(r"(?<![,\s])\s{2,}", line.strip(), maxsplit=1)[0])
            flags.update(entry)
        if entry and _REMOVED in line:
            flags.difference_update(entry)
            entry = []
    return frozenset(flags)


def known_flags(
    program: Program, cache_dir: Path | None = None, tell: Callable[[str], None] | None = None
) -> frozenset[str] | None:
    """None: its help cannot be had, and nothing is claimed.

    `tell` hears a line before a help that takes its time.
    """
    helps = engine_kinds()[program.engine].helps
    kept = remembered_flags(program, cache_dir) if helps else None
    if kept is not None or not helps:
        return kept
    if tell is not None:
        tell(f"asking {program.path} which flags it knows (once for each version)")
    for words in helps:
        text = run_quietly(
            [*program.argv, *words], HELP_TIMEOUT_S, {"COLUMNS": "120", "NO_COLOR": "1"}
        )
        flags = parse_flags(text) if text else frozenset()
        if len(flags) >= FEWEST:
            path = _file(program, cache_dir)
            document = {
                "program": str(program.path),
                "version": version_of(program),
                "flags": sorted(flags),
            }
            with contextlib.suppress(
                OSError
            ):  # a cache that cannot be written costs time, no more
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(document))
            return flags
    return None


def remembered_flags(program: Program, cache_dir: Path | None = None) -> frozenset[str] | None:
    """Return what was found out before. Never asks."""
    try:
        return frozenset(
            map(str, json.loads(_file(program, cache_dir).read_text(encoding="utf-8"))["flags"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(program: Program, cache_dir: Path | None) -> Path:
    words = "\n".join(
        [*program.argv, str(program.path), str(program.stamp), version_of(program) or ""]
    )
    folder = cache_dir or user_paths(os.environ).cache / "engines"
    return folder / f"flags-{hashlib.sha256(words.encode()).hexdigest()[:20]}.json"


def unknown_flags(
    engine: str, arguments: Sequence[str], known: frozenset[str]
) -> Iterable[tuple[str, str | None]]:
    """Yield `--long` flags that are not known, each with the known one most like it.

    `--no-x` is known as `--x` is.
    """
    for word in arguments:
        if word.startswith("--"):
            flag = re.split(r"[=.+]", word, maxsplit=1)[0].replace("_", "-")
        else:
            flag = ""
        if len(flag) < 3 or flag in known or f"--{flag.removeprefix('--no-')}" in known:
            continue
        if engine_kinds()[engine].abbreviates and any(one.startswith(flag) for one in known):
            continue
        near = difflib.get_close_matches(
            flag, sorted(one for one in known if one.startswith("--")), n=1, cutoff=LIKE
        )
        yield flag, near[0] if near else None
