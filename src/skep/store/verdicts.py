"""Verdicts: what became of the answers to items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import msgspec

from skep.store.records import Index
from skep.store.rows import StoredAs


class VerdictOutcome(Enum):
    """Everything but PASSED counts as a failure, and each is shown apart."""

    PASSED = "passed"
    WRONG = "wrong"  # it was run or read, and is not what was asked for
    BROKEN = "broken"  # code that does not compile, or raises before it can be tried
    NO_ANSWER = "no answer"  # nothing to judge: no code, no value, or nothing but reasoning
    EXCEEDED = "exceeded"  # code over the sandbox's limits of time, memory, processes or output
    TRUNCATED = "truncated"  # the answer ended at the token limit
    TIMED_OUT = "timed out"  # the request
    FAILED = "failed"  # the request, by an error of the server or the connection

    @property
    def passed(self) -> bool:
        return self is VerdictOutcome.PASSED


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at: `POST /users answers 201`."""

    name: str
    passed: bool
    detail: str = ""


def _check_lists(checks: Sequence[Check]) -> str:
    return json.dumps([msgspec.structs.astuple(check) for check in checks])


def _checks_of(text: str) -> tuple[Check, ...]:
    return tuple(Check(*one) for one in json.loads(text))


class Verdict(msgspec.Struct, frozen=True):
    """Of one request. `keywords`: what a search for words would have said; None: the item has none."""

    level: int
    repeat: int
    index: Index
    item: str
    outcome: VerdictOutcome
    detail: str = ""  # one line: why
    checks: Annotated[tuple[Check, ...], StoredAs(write=_check_lists, read=_checks_of)] = ()
    keywords: bool | None = None
    keywords_missing: tuple[str, ...] = ()
    checker: str = ""  # its kind and version: "python/2"
    sandbox: str | None = None  # "bubblewrap"; older runs also "namespaces"; None: nothing was run
    seconds: float | None = None  # of judging

    @property
    def passed(self) -> bool:
        return self.outcome.passed
