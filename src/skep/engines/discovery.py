"""Where an engine's program is, and which version: without importing it, as torch alone takes many
seconds.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from skep.catalog.engines import engine_kinds
from skep.errors import UserError
from skep.files import write_whole
from skep.paths import user_paths

VERSION_TIMEOUT_S = 20.0
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


class Program(msgspec.Struct, frozen=True):
    """A program of this machine. `argv` is what stands before its own flags."""

    engine: str
    path: Path
    argv: tuple[str, ...]

    @property
    def stamp(self) -> int:
        """Return when it was changed: another time, once it was installed anew."""
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
    """Return the launch's own program, else the variable's, the one on PATH, beside this
    interpreter, or that skep installed.
    """
    kind = engine_kinds()[engine]
    variable = kind.variable
    for given, origin in ((binary, "binary"), (environ.get(variable), f"${variable}")):
        if given:
            path = _runnable(given, environ)
            if path is None:
                raise UserError(
                    f"{engine}: there is no program `{given}` ({origin})", hint=kind.install
                )
            return _program(engine, path)
    beside = Path(sys.executable).parent / kind.program
    installed = engine_folder(engine, environ) / "bin" / kind.program
    for name in (kind.program, str(beside), str(installed)):
        path = _runnable(name, environ)
        if path is not None:
            return _program(engine, path)
    if kind.module is not None and find_spec(kind.module.partition(".")[0]) is not None:
        return _program(engine, Path(sys.executable))
    name = engine if kind.program == engine else f"`{kind.program}`"
    raise UserError(f"{name} is not installed", hint=kind.install)


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
    program = os.path.expanduser(name)  # noqa: PTH111 - `which` takes a string
    path = shutil.which(program, path=environ.get("PATH"))
    return Path(path).absolute() if path else None


def _program(engine: str, path: Path) -> Program:
    kind = engine_kinds()[engine]
    if kind.module is None:
        return Program(engine, path, (str(path), *kind.command))
    python = interpreter_of(path) if path.name == kind.program else str(path)
    if python is None:
        return Program(engine, path, (str(path), "serve"))
    return Program(engine, path, (python, "-m", kind.module))


def interpreter_of(script: Path) -> str | None:
    """Return which Python runs this script; None: it is not Python's.

    Its first lines tell: pip writes two where the path is long.
    """
    try:
        with script.open("rb") as file:
            head = file.read(2048).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.match(r"#!\s*(?:\S*/env\s+)?(\S*python\S*)", head) or re.match(
        r"#!/bin/sh\n'+exec' (\S+)", head
    )
    return match[1].strip("\"'") if match else None


def version_of(program: Program) -> str | None:
    """Return `llama.cpp b11434-1a2b3c4` or `vllm 0.19.1`; None: it does not tell."""
    return _version(program, program.stamp)


@lru_cache(maxsize=64)
def _version(program: Program, _stamp: int) -> str | None:
    names = engine_kinds()[program.engine].distributions
    if not names:
        output = run_quietly([str(program.path), "--version"], VERSION_TIMEOUT_S)
        return parse_version(program.engine, output) if output else None
    is_module = program.argv[1:2] == ("-m",)
    python = program.argv[0] if is_module else interpreter_of(program.path)
    if not python:
        return None
    output = run_quietly([python, "-c", _METADATA, *names], VERSION_TIMEOUT_S)
    version = (output or "").strip()
    return f"{program.engine} {version}" if version else None


def parse_version(engine: str, output: str) -> str | None:
    """Return the version in what llama-server and ollama print for `--version`.

    Of Ollama the client's own counts: it is what will be started.
    """
    if engine == "llamacpp":
        match = re.search(r"version: (\d+) \((\w+)\)", output) or re.search(
            r"build (\d+), commit (\w+)", output
        )
        plain = re.search(r"version: (\S+)", output)
        if match:
            return f"llama.cpp b{match[1]}-{match[2]}"
        if plain:
            return f"llama.cpp {plain[1]}"
        return None
    match = re.search(r"client version is (\S+)", output) or re.search(r"version is (\S+)", output)
    return f"ollama {match[1]}" if match else None


def run_quietly(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> str | None:
    """Return what it printed on both streams; None where it does not run, fails or takes too
    long.
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
    """Return the flags in its help; None: there is none.

    `tell` hears a line before a help that takes its time.
    """
    helps = engine_kinds()[program.engine].helps
    remembered = remembered_flags(program, cache_dir) if helps else None
    if remembered is not None or not helps:
        return remembered
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
            # A cache that cannot be written costs time, no more.
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(document))
            return flags
    return None


def remembered_flags(program: Program, cache_dir: Path | None = None) -> frozenset[str] | None:
    """Return the flags that an earlier question found; None: there was none. Never asks."""
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
    engine: str, arguments: Sequence[str], known_flags: frozenset[str]
) -> Iterable[tuple[str, str | None]]:
    """Yield `--long` flags that are not known, each with the known one most like it.

    `--no-x` is known as `--x` is.
    """
    for word in arguments:
        if word.startswith("--"):
            flag = re.split(r"[=.+]", word, maxsplit=1)[0].replace("_", "-")
        else:
            flag = ""
        if (
            len(flag) < 3
            or flag in known_flags
            or f"--{flag.removeprefix('--no-')}" in known_flags
        ):
            continue
        if engine_kinds()[engine].abbreviates and any(
            known_flag.startswith(flag) for known_flag in known_flags
        ):
            continue
        near = difflib.get_close_matches(
            flag,
            sorted(known_flag for known_flag in known_flags if known_flag.startswith("--")),
            n=1,
            cutoff=LIKE,
        )
        yield flag, near[0] if near else None
