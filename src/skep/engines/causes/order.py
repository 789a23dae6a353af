"""Which rule tells most about a death, and the rules as the documentation lists them."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from skep.engines.base import Launch
from skep.engines.causes.logwords import plain, plain_lines
from skep.engines.causes.rule import Case, Rule, match
from skep.engines.causes.rulebook import KERNEL, RULES

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


def find(
    launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
) -> tuple[Rule, Case] | None:
    """The rule that tells most, with the line it goes by."""
    lines = plain_lines(tail)
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    rules = KERNEL if killed and oom_kills else RULES
    for rule in rules:
        if (killed and rule.id in _OF_REQUESTS) or (rule.id == _UNSAID and root(tail)):
            continue
        case = match(rule, launch, code, lines)
        if case is not None:
            by_kernel = oom_kills and rule.id in ("killed-child", _UNSAID)
            return (_by_kernel(launch), case) if by_kernel else (rule, case)
    return None


def _by_kernel(launch: Launch) -> Rule:
    return next(rule for rule in KERNEL if not rule.engines or launch.engine in rule.engines)


def root(tail: Sequence[str]) -> str | None:
    """What was raised above "see root cause above"."""
    lines = [line for line in (plain(raw) for raw in reversed(tail)) if not line.quiet]
    raised = (line for line in lines if _RAISED.match(line.text) and not SAYS_NOTHING.search(line.text))
    return next((line.shown for line in raised), None)


def table() -> str:
    """The rules as the documentation lists them."""
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
