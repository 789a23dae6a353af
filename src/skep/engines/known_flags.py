"""Which flags an installed engine knows, from its own help, so that a wrong one is told before the start.

vLLM's help imports torch: it is asked once for a program and a version, and the answer kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from skep.engines.installed import Program, run_quietly, version_of

HELP_TIMEOUT_S = 180.0
LIKE = 0.75  # from here on, one flag is a likely slip of another
FEWEST = 15  # a help with fewer flags is none: an error, or a list of groups
HELPS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (("--help=all",), ("--help",)),  # before 0.11: all there is by --help
    "sglang": (("--help",),),
    "llamacpp": (("--help",),),
}
_ABBREVIATES = ("vllm", "sglang")  # argparse takes the beginning of a flag for the flag
_INDENT = 4  # at most, before a flag's own line; its description stands deeper
_ENTRY = re.compile(rf"^ {{0,{_INDENT}}}(?=--?[A-Za-z])")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_REMOVED = "has been removed"  # llama.cpp goes on listing what it refuses


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "skep" / "engines"


def parse_flags(text: str) -> frozenset[str]:
    """The flags of argparse's or llama.cpp's help; what a description mentions does not count."""
    flags: set[str] = set()
    entry: list[str] = []
    for line in text.splitlines():
        if _ENTRY.match(line):
            entry = _FLAG.findall(_before_description(line.strip()))
            flags.update(entry)
        if entry and _REMOVED in line:
            flags.difference_update(entry)
            entry = []
    return frozenset(flags)


def _before_description(line: str) -> str:
    """llama.cpp aligns its flags with blanks after commas; other runs of blanks end them."""
    return re.split(r"(?<![,\s])\s{2,}", line, maxsplit=1)[0]


def known_flags(
    program: Program, cache_dir: Path | None = None, tell: Callable[[str], None] | None = None
) -> frozenset[str] | None:
    """None: its help cannot be had, and nothing is claimed. `tell` hears a line before a help that takes its time."""
    if program.engine not in HELPS:
        return None
    kept = remembered_flags(program, cache_dir)
    if kept is not None:
        return kept
    if tell is not None:
        tell(f"asking {program.path} which flags it knows (once for each version)")
    for words in HELPS[program.engine]:
        text = run_quietly([*program.argv, *words], HELP_TIMEOUT_S, {"COLUMNS": "120", "NO_COLOR": "1"})
        flags = parse_flags(text) if text else frozenset()
        if len(flags) >= FEWEST:
            _remember(program, flags, cache_dir)
            return flags
    return None


def remembered_flags(program: Program, cache_dir: Path | None = None) -> frozenset[str] | None:
    """What was found out before. Never asks."""
    try:
        kept = json.loads(_file(program, cache_dir).read_text(encoding="utf-8"))
        return frozenset(map(str, kept["flags"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(program: Program, flags: frozenset[str], cache_dir: Path | None) -> None:
    """A cache that cannot be written costs time, no more."""
    path = _file(program, cache_dir)
    document = {"program": str(program.path), "version": version_of(program), "flags": sorted(flags)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(document), encoding="utf-8")
        part.replace(path)


def _file(program: Program, cache_dir: Path | None) -> Path:
    words = "\n".join([*program.argv, str(program.path), str(program.stamp), version_of(program) or ""])
    return (cache_dir or default_cache()) / f"flags-{hashlib.sha256(words.encode()).hexdigest()[:20]}.json"


def unknown_flags(engine: str, arguments: Sequence[str], known: frozenset[str]) -> Iterable[tuple[str, str | None]]:
    """Flags among the arguments that are not known, each with the known one that is most like it.

    Only `--long` ones: a value may begin with one dash. `--no-x` is known where `--x` is.
    """
    for word in arguments:
        flag = re.split(r"[=.+]", word, maxsplit=1)[0].replace("_", "-") if word.startswith("--") else ""
        if len(flag) < 3 or flag in known or f"--{flag.removeprefix('--no-')}" in known:
            continue
        if engine in _ABBREVIATES and any(one.startswith(flag) for one in known):
            continue
        near = difflib.get_close_matches(flag, sorted(one for one in known if one.startswith("--")), n=1, cutoff=LIKE)
        yield flag, near[0] if near else None
