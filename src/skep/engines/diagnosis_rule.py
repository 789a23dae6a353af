"""A rule about an engine's last words, how it is matched with a log, and how it becomes a diagnosis.

The rules are in `diagnosis.toml`. Texts are templates: `{gpu}` is filled from the line or the launch, and a part in
square brackets is left out where one of its values is not known. A log is read as plain lines: without colours, times,
process names and levels; most rules skip what only informs or warns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skep.engines.base import Diagnosis, Launch
from skep.errors import UserError
from skep.units import parse_bytes

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


ABOVE = 250  # lines of a traceback that belong to the error at its end: two workers write theirs interleaved
BELOW = 3  # lines into which a long message may run on
OWN_SHARE = {"vllm": 0.9, "sglang": 0.88}  # where none is given; vLLM says 0.92 since 2026, and the lower one is safe
SHARE_TOP = 0.95  # more is not advised: graphs and late buffers are outside
_TITLES = {"llamacpp": "llama.cpp", "embedded": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "ollama": "Ollama"}

_FIELD = re.compile(r"\{(\w+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """Another launch, different in one thing. `what`: "slots 8 -> 4"; `advice`: "lower slots from 8 to 4"."""

    launch: Launch
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class FailureCase:
    """A launch that ended, and the line that tells why."""

    launch: Launch
    code: int | None
    lines: tuple[LogLine, ...]
    at: int | None  # the telling line; None: the exit code tells
    facts: Mapping[str, Any] = field(default_factory=dict)  # the groups of what matched

    @property
    def line(self) -> LogLine | None:
        return None if self.at is None else self.lines[self.at]

    def size(self, name: str) -> int | None:
        """Return bytes of a fact like "211.25 MiB"."""
        text = self.facts.get(name)
        try:
            return None if text is None else parse_bytes(str(text))
        except UserError:
            return None  # a number that is none

    def number(self, name: str) -> int | None:
        text = self.facts.get(name)
        return int(text) if text is not None and str(text).isdecimal() else None

    def ratio(self, part: str, whole: str) -> float | None:
        """Of two facts in the same unit."""
        try:
            a, b = float(self.facts[part]), float(self.facts[whole])
        except (KeyError, TypeError, ValueError):
            return None
        return a / b if b > 0 else None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that may be tried. `words` says it for the table in the documentation."""

    words: str
    take: Callable[[FailureCase], LaunchChange | None]


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """`looks`: any of them on one line. `near`: also in the traceback above. `example`: lines that it fires on.

    A line of source code in a traceback tells less than what was raised, and counts only where nothing else does.
    """

    id: str
    looks: tuple[re.Pattern[str], ...]
    example: tuple[str, ...]
    cause: str
    remedy: str = ""
    steps: tuple[Remedy, ...] = ()
    final: bool = True
    engines: tuple[str, ...] = ()  # empty: all
    numbers: tuple[re.Pattern[str], ...] = ()  # further facts, on the telling line and the few below it
    near: re.Pattern[str] | None = None
    anywhere: re.Pattern[str] | None = None  # some line of the log, whatever its level
    unless: re.Pattern[str] | None = None  # not if it is on the telling line or the few below it
    signals: tuple[int, ...] = ()  # the process ended by one of them: no line is needed
    warnings: bool = False  # a warning is enough
    only_if: Callable[[Launch], bool] | None = None
    last: bool = False  # the last such line tells, not the first
    value_of: Callable[[FailureCase], Mapping[str, Any]] | None = None  # more facts, worked out


def match(rule: DiagnosisRule, launch: Launch, code: int | None, lines: tuple[LogLine, ...]) -> FailureCase | None:
    if rule.engines and launch.engine not in rule.engines:
        return None
    if rule.only_if is not None and not rule.only_if(launch):
        return None
    if rule.anywhere is not None and not any(rule.anywhere.search(line.text) for line in lines):
        return None
    order = reversed(range(len(lines))) if rule.last else range(len(lines))
    for at in sorted(order, key=lambda at: lines[at].is_source):
        found = _looked(rule, lines, at)
        if found is not None:
            return _case(rule, FailureCase(launch, code, lines, at, found))
    if code is not None and _signal(code) in rule.signals:
        return _case(rule, FailureCase(launch, code, lines, None))
    return None


def _looked(rule: DiagnosisRule, lines: tuple[LogLine, ...], at: int) -> dict[str, Any] | None:
    line = lines[at]
    if line.level in ("DEBUG", "INFO") or (line.quiet and not rule.warnings):
        return None
    hit = next((found for look in rule.looks if (found := look.search(line.text))), None)
    if hit is None:
        return None
    if rule.near is not None:
        above = lines[max(0, at - ABOVE) : at + BELOW]
        if not any(rule.near.search(near.text) for near in above):
            return None
    told = " ".join(near.text for near in lines[at : at + 1 + BELOW])
    if rule.unless is not None and rule.unless.search(told):
        return None
    facts: dict[str, Any] = {}
    for look in rule.numbers:
        if (numbers := look.search(told)) is not None:
            facts |= {name: value for name, value in numbers.groupdict().items() if value is not None}
            break
    return facts | {name: value for name, value in hit.groupdict().items() if value is not None}


def _case(rule: DiagnosisRule, case: FailureCase) -> FailureCase:
    if rule.value_of is None:
        return case
    return FailureCase(case.launch, case.code, case.lines, case.at, {**case.facts, **rule.value_of(case)})


def make_diagnosis(rule: DiagnosisRule, case: FailureCase) -> Diagnosis:
    facts = {**launch_facts(case.launch), **case.facts}
    change = next((found for step in rule.steps if (found := step.take(case)) is not None), None)
    remedy = fill(rule.remedy, facts)
    if change is not None:
        remedy = f"{change.advice}, or {remedy}" if remedy else change.advice
    return Diagnosis(
        cause=fill(rule.cause, facts),
        evidence=None if case.line is None else case.line.shown,
        remedy=remedy or None,
        final=rule.final,
        change=None if change is None else change.launch,
        changed=None if change is None else change.what,
    )


def launch_facts(launch: Launch) -> dict[str, Any]:
    options = launch.options
    filled = (options.memory_share or OWN_SHARE[launch.engine]) if launch.engine in OWN_SHARE else None
    higher = None if filled is None or filled > SHARE_TOP - 0.01 else f"{min(SHARE_TOP, filled + 0.05):g}"
    checkpoint = launch.checkpoint or (launch.weights.name if launch.weights is not None else launch.model)
    return {
        "engine": _TITLES.get(launch.engine, launch.engine), "model": launch.model, "checkpoint": checkpoint,
        "slots": launch.slots, "p2p": options.p2p,
        "context": launch.context_tokens, "port": launch.port or None, "tp": options.tp, "cards": options.cards,
        "kv": options.kv, "quant": options.quant, "dtype": options.dtype, "share": options.memory_share,
        "draft": options.draft, "threads": launch.threads, "more_tp": 2 * options.tp, "batch": options.batch,
        "depth": options.draft.depth if options.draft else None,
        "filled": None if filled is None else f"{filled:g}", "higher": higher,
    }  # fmt: skip


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """`fill("GPU {gpu}[, {free} free]", {"gpu": 0})` is "GPU 0"."""

    def optional(part: re.Match[str]) -> str:
        names = _FIELD.findall(part[1])
        return part[1] if all(facts.get(name) is not None for name in names) else ""

    said = _OPTIONAL.sub(optional, template)
    return _FIELD.sub(lambda field: str(facts.get(field[1], "?")), said)


def _signal(code: int) -> int | None:
    """A shell, or a container, says 128 and the signal's number."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 160 else None
