"""Verdicts: how the answers to items were judged."""

from __future__ import annotations

from enum import Enum

import msgspec

from skep.store.records import Index


class VerdictOutcome(Enum):
    """Everything but PASSED counts as a failure, and each is shown apart."""

    PASSED = "passed"
    WRONG = "wrong"  # it was run or read, and is not what was asked for
    BROKEN = "broken"  # code that does not compile, or raises before it can be tried
    NO_ANSWER = "no answer"  # nothing to judge: no code, no value, or nothing but reasoning
    EXCEEDED = "exceeded"  # code over the sandbox's limits of time, memory, processes or output
    # Of an agent's turn with tools:
    WRONG_TOOL = "wrong tool"  # another tool than the task needs
    BAD_ARGUMENTS = "bad arguments"  # they are not what the tool's schema asks for
    WRONG_EFFECT = "wrong effect"  # valid calls of the right tools that do not do what was asked
    UNKNOWN_TOOL = "unknown tool"  # one that was not offered
    MALFORMED_CALL = "malformed call"  # arguments that are no JSON object, or a flood of calls
    NO_CALL = "no call"  # text instead of a call that was needed
    CALL_AS_TEXT = "call as text"  # in the text, not as a call: nobody parses it
    TRUNCATED = "truncated"  # the answer ended at the token limit
    TIMED_OUT = "timed out"  # the request
    FAILED = "failed"  # the request, by an error of the server or the connection

    @property
    def passed(self) -> bool:
        return self is VerdictOutcome.PASSED


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on the answer of one request."""

    level: int
    repeat: int
    index: Index
    item: str
    outcome: VerdictOutcome
    detail: str = ""  # one line: why
    checker: str = ""  # its kind and version: "python/3"
    sandbox: str | None = None  # "bubblewrap"; older runs also "namespaces"; None: nothing was run
    seconds: float | None = None  # of judging

    @property
    def passed(self) -> bool:
        return self.outcome.passed
