"""What came of one attempt at one task. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Attempted:
    """`error_kind` None: an answer that counts; "rejected": one that does not."""

    answer: str | None = None
    value: Any = None
    error_kind: str | None = None
    error: str | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_at: float | None = None  # unix seconds
    queued_ms: float | None = None
    decode_ms: float | None = None
    finish_reason: str | None = None
    replica: str | None = None
    retry_after_s: float | None = None
