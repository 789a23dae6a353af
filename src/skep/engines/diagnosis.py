"""Why an engine died or refused: its exit code and last words in, cause, evidence and remedy out.

The rules are in `diagnosis.toml`, which is read when the first engine died. Their texts are
templates: `{gpu}` is filled from the line or the launch, and a part in
square brackets is left out where one of its values is not known. A log is read as plain lines:
without colours, times, process names and levels; most rules skip what only informs or warns."""

from __future__ import annotations

import re
import signal
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.engines.base import EXIT_FINAL, Diagnosis, Launch
from skep.engines.remedies import FailureCase, present, take_step

SHOWN = 200  # characters of a line that are shown as evidence
LONGEST = 300  # of a line that are looked at
LONGEST_RAW = 2 * LONGEST  # of a line with its colours, times and process names
MOST_LINES = 400
SIGNALS = {number.value: number.name for number in signal.Signals}

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*+\x07|[\x00-\x08\x0b-\x1f\x7f]")
_PYTHON_WARNING = re.compile(r"\b\w*Warning: ")
_SOURCE = re.compile(r"""raise \w|return |assert |File "|[rf]?["']|\^+$|~""")
_QUIET = ("DEBUG", "INFO", "WARNING")


class LogLine(msgspec.Struct, frozen=True):
    """`level` "": the line does not say."""

    text: str
    level: str = ""
    is_source: bool = False  # a line of somebody's program, as a traceback shows it

    @property
    def quiet(self) -> bool:
        """Return whether it only informs or warns."""
        return self.level in _QUIET

    @property
    def shown(self) -> str:
        return self.text[:SHOWN].rstrip()


def plain(raw: str) -> LogLine:
    """Return a line of a log without its prefixes.

    `(EngineCore_DP0 pid=7) ERROR 11-15 10:00:00 [core.py:866] ValueError: no` is `ValueError: no`,
    of level ERROR.
    """
    text = _COLOURS.sub("", raw[:LONGEST_RAW])
    level = ""
    while (prefix := _prefix_of(text)) is not None:
        text = text[prefix.end() :]
        groups = prefix.groupdict()
        word = groups.get("word") or groups.get("letter")
        if word:
            name = word.upper()
            level = rule_file().levels.get(name, name)
    text = text.strip()[:LONGEST]
    if not level and _PYTHON_WARNING.search(text):
        level = "WARNING"
    is_source = _SOURCE.match(text) is not None
    return LogLine(text, level, is_source)


def _prefix_of(text: str) -> re.Match[str] | None:
    for pattern in rule_file().prefixes:
        prefix = pattern.match(text)
        if prefix is not None:
            return prefix
    return None


# So many lines of a traceback belong to the error at its end: two workers may write theirs
# interleaved.
ABOVE = 250
BELOW = 3  # lines into which a long message may run on
SHARE_TOP = 0.95  # more is not advised: graphs and late buffers are outside

_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|nvrtc).*\.so\.(\d+)")
_FIELD = re.compile(r"\{(\w+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


class DiagnosisRule(msgspec.Struct, frozen=True):
    """`looks`: any of them on one line. `near`: also in the traceback above. `example`: lines that
    it fires on.

    A line of source code in a traceback tells less than what was raised, and counts only where
    nothing else does."""

    id: str
    cause: str
    looks: tuple[re.Pattern[str], ...] = ()
    example: tuple[str, ...] = ()
    remedy: str = ""
    steps: tuple[str, ...] = ()  # of `remedies.take_step`
    final: bool = True
    engines: tuple[str, ...] = ()  # empty: all
    # further facts, on the telling line and the few below it
    numbers: tuple[re.Pattern[str], ...] = ()
    near: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None  # not if it is on the telling line or the few below it
    signals: tuple[str, ...] = ()  # the process ended by one of them: no line is needed
    warnings: bool = False  # a warning is enough
    only_if: str = ""  # a condition of `ONLY_IF`

    def concerns(self, launch: Launch) -> bool:
        if self.engines and launch.engine not in self.engines:
            return False
        if not self.only_if:
            return True
        holds = ONLY_IF[self.only_if]
        return holds(launch)


def match(
    rule: DiagnosisRule, launch: Launch, code: int | None, lines: Sequence[LogLine]
) -> FailureCase | None:
    if not rule.concerns(launch):
        return None
    near = _NearLines(rule.near, lines)
    # Source code comes last: it tells less than what was raised.
    places = sorted(range(len(lines)), key=lambda at: lines[at].is_source)
    for at in places:
        facts = _looked(rule, lines, at, near)
        if facts is not None:
            derived = _worked_out(facts)
            return FailureCase(launch, lines[at].shown, facts | derived)
    if _signal_of(code) in rule.signals:
        return FailureCase(launch)
    return None


def _signal_of(code: int | None) -> str | None:
    """Return the signal that ended a process. A container says 128 + its number."""
    if code is None or 0 <= code <= 128:
        return None
    return SIGNALS.get(abs(code) % 128)


def _worked_out(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return what follows from the facts: bytes as GiB, `86` as SM 8.6, a library's CUDA."""
    numbers = {name: int(text) for name, text in facts.items() if text.isdecimal()}
    derived: dict[str, Any] = {}
    for name in ("least", "has"):
        if name in numbers:
            capability = numbers[name] / 10
            derived[name] = f"{capability:.1f}"
    if "bytes" in numbers:
        gib = numbers["bytes"] / 2**30
        derived["gib"] = f"{gib:.1f}"
    if "ms" in numbers:
        derived["s"] = numbers["ms"] // 1000
    meanings = rule_file().xid
    xid = facts.get("xid")
    if xid is not None and xid in meanings:
        derived["what"] = meanings[xid]
    if "library" in facts:
        derived["cuda"] = "and the engine"
        of_cuda = _CUDA_LIBRARY.match(facts["library"])
        if of_cuda is not None:
            derived["cuda"] = of_cuda[1]
    return derived


class _NearLines:
    """The lines that a rule needs near the telling one. They are searched once, when asked for."""

    def __init__(self, near: re.Pattern[str] | None, lines: Sequence[LogLine]) -> None:
        self._near = near
        self._lines = lines

    @cached_property
    def _places(self) -> list[int]:
        near = self._near
        if near is None:
            return []
        return [at for at, line in enumerate(self._lines) if near.search(line.text)]

    def missing(self, start: int, end: int) -> bool:
        """Return whether the rule wants such a line, and none is in this range."""
        if self._near is None:
            return False
        place = bisect_left(self._places, start)
        if place == len(self._places):
            return True
        return self._places[place] >= end


def _looked(
    rule: DiagnosisRule, lines: Sequence[LogLine], at: int, near: _NearLines
) -> dict[str, str] | None:
    line = lines[at]
    if line.level in ("DEBUG", "INFO") or (line.quiet and not rule.warnings):
        return None
    hit = _first_hit(rule.looks, line.text)
    if hit is None or near.missing(at - ABOVE, at + BELOW):
        return None
    lines_to_read = lines[at : at + 1 + BELOW]
    text = " ".join(line.text for line in lines_to_read)
    if rule.unless is not None and rule.unless.search(text):
        return None
    facts = _groups(hit)
    numbers = _first_hit(rule.numbers, text)
    if numbers is None:
        return facts
    return _groups(numbers) | facts


def _first_hit(patterns: Sequence[re.Pattern[str]], text: str) -> re.Match[str] | None:
    for pattern in patterns:
        hit = pattern.search(text)
        if hit is not None:
            return hit
    return None


def _groups(hit: re.Match[str]) -> dict[str, str]:
    groups = hit.groupdict()
    return {name: value for name, value in groups.items() if value is not None}


def make_diagnosis(rule: DiagnosisRule, case: FailureCase) -> Diagnosis:
    facts = {**launch_facts(case.launch), **case.facts}
    cause = fill(rule.cause, facts)
    remedy = fill(rule.remedy, facts)
    for step in rule.steps:
        change = take_step(step, case)
        if change is None:
            continue
        advice = change.advice
        if remedy:
            advice = f"{advice}, or {remedy}"
        return Diagnosis(cause, case.line, advice, rule.final, change.launch, change.what)
    return Diagnosis(cause, case.line, remedy or None, rule.final)


def launch_facts(launch: Launch) -> dict[str, Any]:
    options = launch.options
    filled = present(launch, "memory_share")
    higher = None
    if filled is not None and filled <= SHARE_TOP - 0.01:
        higher = f"{min(SHARE_TOP, filled + 0.05):g}"
    file_name = launch.weights.name if launch.weights is not None else launch.model
    checkpoint = launch.checkpoint or file_name
    return {
        "engine": kind_of(launch.engine).title or launch.engine,
        "model": launch.model,
        "checkpoint": checkpoint,
        "slots": launch.slots,
        "p2p": options.p2p,
        "context": launch.context_tokens,
        "port": launch.port or None,
        "tp": options.tp,
        "cards": options.cards,
        "kv": options.kv,
        "quant": options.quant,
        "dtype": options.dtype,
        "share": options.memory_share,
        "draft": options.draft,
        "threads": launch.threads,
        "more_tp": 2 * options.tp,
        "batch": options.batch,
        "depth": options.draft.depth if options.draft else None,
        "filled": None if filled is None else f"{filled:g}",
        "higher": higher,
    }


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Fill a template: `fill("GPU {gpu}[, {free} free]", {"gpu": 0})` is "GPU 0"."""

    def optional(part: re.Match[str]) -> str:
        names = _FIELD.findall(part[1])
        if all(facts.get(name) is not None for name in names):
            return part[1]
        return ""

    def value(field: re.Match[str]) -> str:
        return str(facts.get(field[1], "?"))

    shortened = _OPTIONAL.sub(optional, template)
    return _FIELD.sub(value, shortened)


ONLY_IF: Mapping[str, Callable[[Launch], bool]] = {
    "cards_without_p2p": lambda launch: launch.options.cards > 1 and launch.options.p2p == "off",
    "draft": lambda launch: launch.options.draft is not None,
    "fp8_kv": lambda launch: (launch.options.kv or "").startswith("fp8"),
    "remote_code_forbidden": lambda launch: not launch.options.trust_remote_code,
    "tensor_parallel": lambda launch: launch.options.tp > 1,
}


class RuleFile(msgspec.Struct, frozen=True):
    """The content of `diagnosis.toml`."""

    rules: tuple[DiagnosisRule, ...]
    kernel: tuple[DiagnosisRule, ...]  # where the kernel counted that it killed a process
    prefixes: tuple[re.Pattern[str], ...]  # of a log's lines
    levels: Mapping[str, str]
    xid: Mapping[str, str]  # what the driver's error numbers mean
    says_nothing: re.Pattern[str]  # a line that is no reason


@cache
def rule_file() -> RuleFile:
    file = files("skep.engines").joinpath("diagnosis.toml")
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    shared_patterns = document["shared"]
    rules = [_rule(entry, shared_patterns) for entry in document["rule"]]
    kernel = [_rule(entry, shared_patterns) for entry in document["kernel"]]
    says_nothing = "|".join(document["says_nothing"])
    return RuleFile(
        rules=tuple(rules),
        kernel=tuple(kernel),
        prefixes=tuple(map(re.compile, document["prefixes"])),
        levels=document["levels"],
        xid=document["xid"],
        says_nothing=re.compile(says_nothing, re.IGNORECASE),
    )


def _rule(entry: dict[str, Any], shared_patterns: Mapping[str, Any]) -> DiagnosisRule:
    for name in ("looks", "numbers"):
        shared_name = entry.get(name)
        if isinstance(shared_name, str):
            entry[name] = shared_patterns[shared_name]
    return msgspec.convert(entry, DiagnosisRule, dec_hook=_pattern)


def _pattern(_kind: type, text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_UNSAID = "core-gone"  # only where nothing was raised
_OF_REQUESTS = ("chat-template", "ollama-capability")  # one client was refused: no reason to die
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Value error)\b[:,(]")


def find_rule(
    launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
) -> tuple[DiagnosisRule, FailureCase] | None:
    """Return the rule that tells most, with the line it goes by."""
    lines = [plain(raw) for raw in tail[-MOST_LINES:]]
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    file = rule_file()
    rules = file.rules
    if killed and oom_kills:
        rules = file.kernel
    for rule in rules:
        if killed and rule.id in _OF_REQUESTS:
            continue
        if rule.id == _UNSAID and root(tail):
            continue
        case = match(rule, launch, code, lines)
        if case is None:
            continue
        if oom_kills and rule.id in ("killed-child", _UNSAID):  # the kernel knows more
            rule = next(rule for rule in file.kernel if rule.concerns(launch))  # noqa: PLW2901
        return rule, case
    return None


def root(tail: Sequence[str]) -> str | None:
    """Return what was raised above "see root cause above"."""
    says_nothing = rule_file().says_nothing
    for raw in reversed(tail[-MOST_LINES:]):
        line = plain(raw)
        is_error = not line.quiet and _RAISED.match(line.text)
        if is_error and not says_nothing.search(line.text):
            return line.shown
    return None


_WORDS = re.compile(r"error\b|\bfailed\b|out of memory\b|\bcannot\b", re.IGNORECASE)


def diagnose(
    launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
) -> Diagnosis:
    """Return why an engine ended. `code` None: it runs and refused, `tail` is what it answered.

    `oom_kills`: processes that the kernel killed.
    """
    tail = [line[:LONGEST_RAW] for line in tail[-MOST_LINES:]]
    if code == EXIT_FINAL and tail:
        return _own_last_words(launch, code, tail)
    if code not in (-signal.SIGTERM, 128 + signal.SIGTERM):
        matched = find_rule(launch, code, tail, oom_kills=oom_kills)
        if matched is not None:
            return make_diagnosis(*matched)
    if code is not None and code < 0:
        name = SIGNALS.get(-code, f"signal {-code}")
        guess = ": out of memory?" if code == -signal.SIGKILL else ""
        return Diagnosis(f"killed by {name}{guess}")
    last = _last_words(tail)
    if code is None:
        return Diagnosis(last)
    ended = f"exit code {code}"
    cause = f"{last} ({ended})" if last else ended
    return Diagnosis(cause, final=code == 127)


def _own_last_words(launch: Launch, code: int, tail: Sequence[str]) -> Diagnosis:
    """Return what an engine of ours said at its end; of llama.cpp inside, what it said before."""
    last = tail[-1].removeprefix("error: ").strip()
    if "refused to start" in last:
        matched = find_rule(launch, code, tail[:-1])
        if matched is not None:
            return replace(make_diagnosis(*matched), final=True)
    return Diagnosis(last, final=True)


def _last_words(tail: Sequence[str]) -> str:
    """Return the last line that looks like a reason, else the last one at all."""
    errors = [line for line in tail if _WORDS.search(line[:LONGEST])]
    causes = [line[:LONGEST] for line in errors if not plain(line).quiet]
    last = ""
    for line in causes or tail:
        last = line.strip() or last
    if not last:
        return ""
    says_nothing = rule_file().says_nothing
    if says_nothing.search(last[:LONGEST]):
        return root(tail) or last
    return last
