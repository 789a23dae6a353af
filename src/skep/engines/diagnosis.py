"""Why an engine died or refused: its exit code and last words in, cause, evidence and remedy out.

The rules are in `diagnosis.toml`. They are read when something died, not before: what starts engines
imports this.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from skep.catalog.gpus import Device
from skep.engines.base import EXIT_FINAL, Diagnosis, Launch
from skep.engines.log_lines import plain

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


def predict_failure(launch: Launch, cards: Sequence[Device]) -> Diagnosis | None:
    """What is certain to fail, said before the start. `cards` are those the launch gets, in its order."""
    from skep.engines import preflight

    return preflight.predict_failure(launch, cards)


def _by_rule(launch: Launch, code: int | None, tail: Sequence[str], oom_kills: int | None) -> Diagnosis | None:
    from skep.engines.diagnosis_rule import make_diagnosis
    from skep.engines.diagnosis_rules import find_rule

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
        last = _root_of(last, tail)
    return Diagnosis(f"{last} ({ended})" if last and ended else last or ended, final=code == 127)


def _root_of(last: str, tail: Sequence[str]) -> str:
    from skep.engines.diagnosis_rules import SAYS_NOTHING, root

    return (root(tail) or last) if SAYS_NOTHING.search(last) else last


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
