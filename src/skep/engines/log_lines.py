"""An engine's last words as plain lines: without colours, times, process names and levels, each level kept beside.

What a log only informs about or warns of is rarely why its process died; most rules read neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 200  # characters of a line that are shown as evidence
LONGEST = 2000  # of a line that are looked at
MOST_LINES = 400

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "ERROR", "C": "ERROR"}
_LEVELS = {"WARN": "WARNING", "CRITICAL": "ERROR", "FATAL": "ERROR", "TRACE": "DEBUG"}
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"[\w.-]+-\d+ +\| ",  # docker compose
        r"\((?:[\w.-]+ )*(?:rank=\d+ )?pid=\d+(?:, ip=[\d.]+)?\) ?",  # (EngineCore_DP0 pid=123)
        rf"(?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d {_TIME} \[?[\w./-]+:\d+\] ?",  # vLLM
        r"(?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL|TRACE|WARN): +",  # uvicorn
        rf"\[?(?P<letter>[DIWEFC])\d{{3,4}} {_TIME}(?: +\d+)? [^\]]{{1,120}}\] ?",  # glog, torch
        rf"\[\d{{4}}-\d\d-\d\d[ T]{_TIME}[^\]]{{0,40}}\] ?",  # SGLang
        rf"\d{{4}}[-/]\d\d[-/]\d\d[ T]{_TIME}(?:Z|[+-]\d\d:?\d\d)? ?",
        r"\d+\.\d\d\.\d{3}\.\d{3} (?P<letter>[DIWEFC]) ",  # llama.cpp
        r"time=\S+ level=(?P<word>\w+)(?:\+\d+)? (?:source=\S+ )?",  # Ollama
        r"\[rank ?\d+\]: ?",
        r"\[E ProcessGroupNCCL\.cpp:\d+\] ?",
    )
)
_PYTHON_WARNING = re.compile(r"\b\w*Warning: ")
_SOURCE = re.compile(r"""raise \w|return |assert |File "|[rf]?["']|\^+$|~""")
_QUIET = ("DEBUG", "INFO", "WARNING")


@dataclass(frozen=True, slots=True)
class LogLine:
    """`level` "": the line does not say."""

    text: str
    level: str = ""
    is_source: bool = False  # a line of somebody's program, as a traceback shows it

    @property
    def quiet(self) -> bool:
        """It only informs or warns."""
        return self.level in _QUIET

    @property
    def shown(self) -> str:
        return self.text[:SHOWN].rstrip()


def plain(raw: str) -> LogLine:
    """`(EngineCore_DP0 pid=7) ERROR 11-15 10:00:00 [core.py:866] ValueError: no` → `ValueError: no`, ERROR."""
    text = _COLOURS.sub("", raw[:LONGEST])
    level = ""
    found = True
    while found:
        found = False
        for prefix in _PREFIXES:
            match = prefix.match(text)
            if match is None:
                continue
            text, found = text[match.end() :], True
            said = match.groupdict()
            if said.get("word"):
                level = _LEVELS.get(said["word"].upper(), said["word"].upper())
            elif said.get("letter"):
                level = _LETTERS[said["letter"]]
    text = text.strip()
    if not level and _PYTHON_WARNING.search(text):
        level = "WARNING"
    return LogLine(text, level, _SOURCE.match(text) is not None)


def plain_lines(tail: Sequence[str]) -> tuple[LogLine, ...]:
    return tuple(plain(raw) for raw in tail[-MOST_LINES:])
