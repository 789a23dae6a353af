"""Verdicts and the items they are about, as rows. Knows columns; runs no statement."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from sqlite3 import Row
from typing import Any

from skep.store.rows import json_text, storable
from skep.workload.items import Item, item_json


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


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: `POST /users answers 201`."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one request. `keywords`: what a search for words would have said; None: the item has none."""

    level: int
    repeat: int
    index: int
    item: str
    outcome: VerdictOutcome
    detail: str = ""  # one line: why
    checks: tuple[Check, ...] = ()
    keywords: bool | None = None
    keywords_missing: tuple[str, ...] = ()
    checker: str = ""  # its kind and version: "python/2"
    sandbox: str | None = None  # "bubblewrap"; older runs also "namespaces"; None: nothing was run
    seconds: float | None = None  # of judging

    @property
    def passed(self) -> bool:
        return self.outcome.passed


INSERT_ITEM = "INSERT INTO run_items VALUES (?, ?, ?)"
INSERT_VERDICT = f"INSERT INTO verdicts VALUES ({', '.join('?' * 13)})"  # noqa: S608


def item_row(run_id: str, item: Item) -> tuple[Any, ...]:
    return run_id, storable(item.id), json_text(item_json(item))


def verdict_row(run_id: str, verdict: Verdict) -> tuple[Any, ...]:
    checks = [[check.name, check.passed, check.detail] for check in verdict.checks]
    return (
        run_id, verdict.level, verdict.repeat, verdict.index, storable(verdict.item), verdict.outcome.value,
        storable(verdict.detail), json.dumps(checks), verdict.keywords, json.dumps(verdict.keywords_missing),
        verdict.checker, verdict.sandbox, verdict.seconds,
    )  # fmt: skip


def verdict_of(row: Row) -> Verdict:
    return Verdict(
        level=row["level"],
        repeat=row["repeat"],
        index=row["idx"],
        item=row["item"],
        outcome=VerdictOutcome(row["outcome"]),
        detail=row["detail"],
        checks=tuple(Check(*one) for one in json.loads(row["checks"])),
        keywords=None if row["keywords"] is None else bool(row["keywords"]),
        keywords_missing=tuple(json.loads(row["keywords_missing"])),
        checker=row["checker"],
        sandbox=row["sandbox"],
        seconds=row["seconds"],
    )
