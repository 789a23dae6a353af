"""A scenario of chaos: one thing is done to skep on purpose, and a row says what clients saw.

Unlike the random havoc of `run.py`, each scenario is about one promise and can be run alone, also
with the skep of another checkout, so that a change is seen before and after."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from havoc.audit import Check

MODEL = "fake-model"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a scenario runs: a folder of its own, and the Python whose skep is tried."""

    folder: Path
    python: str


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    name: str
    action: str  # what was done
    figures: dict[str, Any]  # what clients and the machine saw
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


Scenario = Callable[[Stage, str], Awaitable[ScenarioRow]]  # the second argument is the row's name


def row_as_json(row: ScenarioRow) -> dict[str, Any]:
    checks = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in row.checks]
    return {
        "name": row.name,
        "action": row.action,
        "figures": row.figures,
        "checks": checks,
        "ok": row.ok,
    }


def print_row(row: ScenarioRow, label: str = "") -> None:
    verdict = "pass" if row.ok else "FAIL"
    print(f"{verdict}  {row.name}{label}: {row.action}")
    figures = (f"{name.replace('_', ' ')} {figure}" for name, figure in row.figures.items())
    print(f"      {', '.join(figures)}")
    for check in row.checks:
        if not check.ok:
            print(f"      FAIL  {check.name}: {check.detail}")


def limit_check(name: str, figure: float, most: float, unit: str) -> Check:
    """Return the check that a figure is at most so much."""
    return Check(name, figure <= most, f"{figure:g} {unit}, at most {most:g} {unit}")


def chat_request(model: str, tokens: int, *, stream: bool = True) -> bytes:
    """Return a chat request, head and body. The connection stays open after its answer."""
    fields: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": tokens,
        "stream": stream,
    }
    return post_request("/v1/chat/completions", fields)


def post_request(
    path: str, fields: dict[str, Any], host: str = "localhost", *headers: str
) -> bytes:
    body = json.dumps(fields).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
