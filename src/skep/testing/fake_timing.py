"""How long the fake engine takes: prefill, and the time of each token as its load changes.

Knows no clock: times come in as arguments, deadlines go out.
"""

from __future__ import annotations

from dataclasses import dataclass

from skep.errors import UserError

LATE_S = 0.25  # a process that was stopped for longer than this goes on from now, it does not catch up


@dataclass(frozen=True, slots=True)
class Curve:
    """Milliseconds per token against busy slots: straight lines between points, flat outside them."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> Curve:
        """`1:10,2:12,4:16`: ten milliseconds with one busy slot, twelve with two."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            points = tuple(sorted((float(busy), float(ms)) for busy, ms in pairs))
        except ValueError:
            raise UserError(f"curve `{text}` cannot be read", hint="write it as 1:10,2:12,4:16") from None
        if len({busy for busy, _ in points}) < len(points):
            raise UserError(f"curve `{text}` names one load twice", hint="write it as 1:10,2:12,4:16")
        return cls(points)

    def at(self, busy: float) -> float:
        if busy <= self.points[0][0]:
            return self.points[0][1]
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            if busy <= x1:
                return y0 + (y1 - y0) * (busy - x0) / (x1 - x0)
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Speed:
    """All times of one fake replica. `scale` multiplies every one of them."""

    curve: Curve
    ttft_ms: float = 0.0
    prefill_tok_s: float | None = None  # None: the prompt's length costs nothing
    overfill_slowdown: float = 1.0  # factor on each token while requests wait inside the engine
    scale: float = 1.0

    def first_token_s(self, prompt_tokens: int) -> float:
        prefill_s = prompt_tokens / self.prefill_tok_s if self.prefill_tok_s else 0.0
        return (self.ttft_ms / 1000 + prefill_s) * self.scale

    def token_s(self, busy: int, waiting: int) -> float:
        factor = self.overfill_slowdown if waiting else 1.0
        return self.curve.at(busy) / 1000 * factor * self.scale


class DecodeClock:
    """Deadlines of one answer's tokens. Each is the deadline before it plus a token time, so lateness is not kept."""

    def __init__(self, speed: Speed, start_s: float, prompt_tokens: int) -> None:
        self._speed = speed
        self.deadline_s = start_s + speed.first_token_s(prompt_tokens)

    def advance(self, now_s: float, *, busy: int, waiting: int) -> float:
        base_s = self.deadline_s if now_s - self.deadline_s < LATE_S else now_s
        self.deadline_s = base_s + self._speed.token_s(busy, waiting)
        return self.deadline_s
