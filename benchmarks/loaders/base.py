"""What a load generator is asked to do, what it says afterwards, and how one is described.

Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROMPT_TOKENS = (
    200  # of the tokenizer in tokenizer.py, which knows letters and few words: about 200 bytes
)


class CouldNotRun(Exception):
    """A load generator that gives no figures; the message says why and goes into the table."""


@dataclass(frozen=True, slots=True)
class Load:
    url: str
    model: str
    concurrency: int
    requests: int
    tokens: int  # of each answer


@dataclass(frozen=True, slots=True)
class Said:
    """What the tool reports of its own run; None where it has no such figure."""

    ttft_mean_ms: float | None
    ttft_p99_ms: float | None
    tpot_mean_ms: float | None
    tok_s: float | None  # output tokens over the run, as the tool counts it
    tokens_per_answer: float | None
    answers: int | None
    remark: str | None = None  # what the tool says about itself


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run may write, and what it may use."""

    folder: Path
    venv: Path | None
    tokenizer: Path
    output: Path  # of its stdout


@dataclass(frozen=True, slots=True)
class Command:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loader:
    """`package` and `version` are installed into a venv of its own; None: it is here already."""

    name: str
    command: Callable[[Load, Place], Command]
    said: Callable[[Load, Place], Said]
    package: str | None = None
    version: str | None = None
    extras: tuple[str, ...] = ()  # also installed


def percentile(values: list[float], share: float) -> float:
    """Interpolated between the two nearest ranks."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
