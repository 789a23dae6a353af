"""Why an engine died or refused: its exit code and last words in, cause, evidence and remedy out.

The rules are in `diagnosis.toml`. They are read when this is imported, so import it when something died.
"""

from __future__ import annotations

import re
import signal
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from skep.engines import remedies
from skep.engines.base import EXIT_FINAL, Diagnosis, Launch
from skep.engines.diagnosis_rule import DiagnosisRule, FailureCase, make_diagnosis, match, plain, plain_lines

_FILE = tomllib.loads(files("skep.engines").joinpath("diagnosis.toml").read_text(encoding="utf-8"))
_LIBRARIES = ("libcudart", "libcublas", "libnvrtc", "libcublasLt")  # whose number is CUDA's


def _capabilities(case: FailureCase) -> dict[str, str]:
    """`86` is compute capability 8.6."""
    told = {name: str(case.facts.get(name, "")) for name in ("least", "has")}
    return {name: f"{int(text) / 10:.1f}" for name, text in told.items() if text.isdecimal()}


def _cuda(case: FailureCase) -> dict[str, str]:
    library = str(case.facts.get("library", ""))
    version = re.search(r"\.so\.(\d+)", library) if library.startswith(_LIBRARIES) else None
    return {"cuda": version[1] if version is not None else "and the engine"}


def _gib(case: FailureCase) -> dict[str, str]:
    size = case.number("bytes")
    return {} if size is None else {"gib": f"{size / 2**30:.1f}"}


def _seconds(case: FailureCase) -> dict[str, int]:
    ms = case.number("ms")
    return {} if ms is None else {"s": ms // 1000}


def _xid(case: FailureCase) -> dict[str, str]:
    known = _FILE["xid"].get(str(case.facts.get("xid")))
    return {} if known is None else {"what": known}


_ONLY_IF: Mapping[str, Callable[[Launch], bool]] = {
    "cards_without_p2p": lambda launch: launch.options.cards > 1 and launch.options.p2p == "off",
    "draft": lambda launch: launch.options.draft is not None,
    "fp8_kv": lambda launch: (launch.options.kv or "").startswith("fp8"),
    "remote_code_forbidden": lambda launch: not launch.options.trust_remote_code,
    "tensor_parallel": lambda launch: launch.options.tp > 1,
}
_VALUE_OF: Mapping[str, Callable[[FailureCase], Mapping[str, Any]]] = {
    "capabilities": _capabilities, "cuda": _cuda, "gib": _gib, "seconds": _seconds, "xid": _xid,
}  # fmt: skip


def _rule(entry: Mapping[str, Any]) -> DiagnosisRule:
    told = dict(entry)
    for name in ("looks", "numbers"):
        found = told.get(name, ())
        told[name] = tuple(map(_pattern, _FILE["shared"][found] if isinstance(found, str) else found))
    for name in ("near", "anywhere", "unless"):
        told[name] = _pattern(told[name]) if name in told else None
    for name in ("example", "engines"):
        told[name] = tuple(told.get(name, ()))
    told["signals"] = tuple(signal.Signals[name] for name in told.get("signals", ()))
    told["steps"] = tuple(getattr(remedies, name) for name in told.get("steps", ()))
    told["only_if"] = _ONLY_IF[told["only_if"]] if "only_if" in told else None
    told["value_of"] = _VALUE_OF[told["value_of"]] if "value_of" in told else None
    return DiagnosisRule(**told)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


RULES = tuple(map(_rule, _FILE["rule"]))
KERNEL = tuple(map(_rule, _FILE["kernel"]))  # where the kernel counted that it killed a process


_UNSAID = "core-gone"  # only where nothing was raised
_OF_REQUESTS = ("chat-template", "ollama-capability")  # one client was refused: no reason to die
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)|Value error)\b[:,(]")
SAYS_NOTHING = re.compile(
    r"engine core initialization failed|see root cause above|enginedeaderror|enginecore encountered|"
    r"received sigquit from a child|failed to start\.?$|worker failed with error '', |workerproc initialization failed|"
    r"see stack trace|error executing method|resource_tracker|destroy_process_group|failed core proc|"
    r"please check the stack trace above",
    re.IGNORECASE,
)


def find_rule(
    launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
) -> tuple[DiagnosisRule, FailureCase] | None:
    """Return the rule that tells most, with the line it goes by."""
    lines = plain_lines(tail)
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    rules = KERNEL if killed and oom_kills else RULES
    for rule in rules:
        if (killed and rule.id in _OF_REQUESTS) or (rule.id == _UNSAID and root(tail)):
            continue
        case = match(rule, launch, code, lines)
        if case is not None:
            by_kernel = oom_kills and rule.id in ("killed-child", _UNSAID)
            said_by = next(rule for rule in KERNEL if not rule.engines or launch.engine in rule.engines)
            return (said_by if by_kernel else rule), case
    return None


def root(tail: Sequence[str]) -> str | None:
    """Return what was raised above "see root cause above"."""
    lines = [line for line in (plain(raw) for raw in reversed(tail)) if not line.quiet]
    raised = (line for line in lines if _RAISED.match(line.text) and not SAYS_NOTHING.search(line.text))
    return next((line.shown for line in raised), None)


def table() -> str:
    """Return the rules as the documentation lists them."""
    rows = [
        "| cause | engines | what the log says | what skep says | what `--fallback` may change |",
        "|---|---|---|---|---|",
    ]
    for rule in (*RULES, *KERNEL):
        says = (
            " … ".join(f"`{_cell(line.strip())}`" for line in rule.example)
            or "nothing: the exit code and the kernel's count"
        )
        advice = rule.remedy or "the change"
        change = "; ".join(each.words for each in rule.steps) or "—"
        told = f"{_cell(rule.cause)}. *{_cell(advice)}*"
        rows.append(f"| {rule.id} | {', '.join(rule.engines) or 'all'} | {says} | {told} | {change} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_WORDS = re.compile(r"error\b|\bfailed\b|out of memory\b|\bcannot\b", re.IGNORECASE)


def diagnose(launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None) -> Diagnosis:
    """`code` None: it runs and refused, `tail` is what it answered. `oom_kills`: how many processes the kernel killed
    for want of memory while this one ran, where somebody counted.
    """
    if code == EXIT_FINAL and tail:
        return _own_words(launch, code, tail)
    if code not in (-signal.SIGTERM, 128 + signal.SIGTERM):
        found = _by_rule(launch, code, tail, oom_kills)
        if found is not None:
            return found
    return _unknown(code, tail)


def _by_rule(launch: Launch, code: int | None, tail: Sequence[str], oom_kills: int | None) -> Diagnosis | None:
    found = find_rule(launch, code, tail, oom_kills=oom_kills)
    return None if found is None else make_diagnosis(*found)


def _own_words(launch: Launch, code: int, tail: Sequence[str]) -> Diagnosis:
    """An engine of ours says at the end what is wrong; where llama.cpp refused, its own log says it better."""
    last = tail[-1].removeprefix("error: ").strip()
    if "refused to start" in last and (found := _by_rule(launch, code, tail[:-1], None)) is not None:
        return replace(found, final=True)
    return Diagnosis(last, final=True)


def _unknown(code: int | None, tail: Sequence[str]) -> Diagnosis:
    if code is not None and code < 0:
        how = f"killed by {_signal_name(-code)}" + (": out of memory?" if code == -signal.SIGKILL else "")
        return Diagnosis(how)
    ended = "" if code is None else f"exit code {code}"
    causes = [line for line in tail if _WORDS.search(line) and not plain(line).quiet]
    last = next((line.strip() for line in reversed(causes or list(tail)) if line.strip()), None)
    if last is not None:
        last = (root(tail) or last) if SAYS_NOTHING.search(last) else last
    return Diagnosis(f"{last} ({ended})" if last and ended else last or ended, final=code == 127)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
