"""The speed model, the faults and the command line of the fake engine.

Preset `dual-3090` is one of two replicas of a published rig: an RTX 3090 for each, two slots, 1024
tokens in and out. Together they made 82, 154, 225 and 167 tok/s at C = 1, 2, 4 and 8 behind plain
least-connections; the published delays do not multiply out to that. The preset keeps the tok/s:
80, 161, 225, and 163 while every replica holds two requests more than it has slots; 225 at any C
when it never does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec

from skep.errors import UserError
from skep.testing.agent_script import read_script
from skep.testing.fake_answers import DATA, LoadShare, Quality, read_answers, read_dialogues

# A process that was stopped for longer than this continues from now and does not catch up.
LATE_S = 0.25


class TokenTimeCurve(msgspec.Struct, frozen=True):
    """Milliseconds per token by busy slots: straight lines between points, flat outside them."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> TokenTimeCurve:
        """Parse `1:10,2:12,4:16`: ten milliseconds with one busy slot, twelve with two."""
        pairs = [part.split(":") for part in text.split(",")]
        return cls(tuple(sorted((float(busy), float(ms)) for busy, ms in pairs)))

    def at(self, busy: float) -> float:
        if busy <= self.points[0][0]:
            return self.points[0][1]
        for (x0, y0), (x1, y1) in zip(self.points, self.points[1:], strict=False):
            if busy <= x1:
                return y0 + (y1 - y0) * (busy - x0) / (x1 - x0)
        return self.points[-1][1]


class Speed(msgspec.Struct, frozen=True):
    """All times of one fake replica. `scale` multiplies every one of them."""

    curve: TokenTimeCurve
    ttft_ms: float = 0.0
    prefill_tok_s: float | None = None  # None: the prompt's length costs nothing
    overfill_slowdown: float = 1.0  # factor on each token while requests wait inside the engine
    scale: float = 1.0

    def first_token_s(self, prompt_tokens: int) -> float:
        if self.prefill_tok_s:
            prefill_s = prompt_tokens / self.prefill_tok_s
        else:
            prefill_s = 0.0
        return (self.ttft_ms / 1000 + prefill_s) * self.scale

    def token_s(self, busy: int, waiting: int) -> float:
        factor = self.overfill_slowdown if waiting else 1.0
        return self.curve.at(busy) / 1000 * factor * self.scale


class DecodeClock:
    """Deadlines of one answer's tokens.

    Each is the previous deadline plus a token time, so delays do not add up.
    """

    def __init__(self, speed: Speed, start_s: float, prompt_tokens: int) -> None:
        self._speed = speed
        self.deadline_s = start_s + speed.first_token_s(prompt_tokens)

    def advance(self, now_s: float, *, busy: int, waiting: int) -> float:
        if now_s - self.deadline_s < LATE_S:
            base_s = self.deadline_s
        else:
            base_s = now_s
        self.deadline_s = base_s + self._speed.token_s(busy, waiting)
        return self.deadline_s


class FaultKind(Enum):
    REFUSE = "refuse"  # the listener is closed, for `for_s` seconds or until `none`
    SLOW_ACCEPT = "slow-accept"  # a new connection is not read for `delay_ms`
    CLOSE_FIRST = "close-first"
    HANG_FIRST = "hang-first"
    HANG_MID = "hang-mid"
    CLOSE_MID = "close-mid"
    ERROR_500 = "500"
    BUSY_503 = "503"
    LIMIT_429 = "429"
    GARBAGE = "garbage"
    HTML = "html"
    INVALID_JSON = "invalid-json"
    SHORT_BODY = "short-body"
    ENDLESS = "endless"  # an answer that goes on until the client hangs up
    CRASH = "crash"
    NONE = "none"  # forget all faults, listen again

    @property
    def is_mid(self) -> bool:
        """Return whether it strikes a running request, which has a slot and has sent
        `after_tokens` tokens.
        """
        return self in {
            FaultKind.HANG_FIRST,
            FaultKind.HANG_MID,
            FaultKind.CLOSE_MID,
            FaultKind.CRASH,
        }


class InjectedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: FaultKind
    times: int | None = 1  # requests (connections for slow-accept) it strikes; None: all of them
    after_tokens: int = 0
    path: str | None = None  # start of the paths it strikes; None: each POST under /v1/
    reset: bool = False  # close with RST instead of FIN
    delay_ms: float = 100.0
    for_s: float | None = None
    retry_after_s: int = 1
    exit_code: int = 1

    @classmethod
    def parse(cls, text: str) -> InjectedFault:
        """Parse a kind alone, `close-mid`, or a JSON object, `{"kind": "close-mid",
        "after_tokens": 3}`.
        """
        if text.startswith("{"):
            return msgspec.json.decode(text, type=cls)
        return cls(FaultKind(text))

    def strikes(self, method: str, path: str) -> bool:
        if self.kind is FaultKind.SLOW_ACCEPT:
            return False
        if self.path is not None:
            return path.startswith(self.path)
        return method == "POST" and path.startswith("/v1/")


class FaultPlan:
    """The faults still to come, oldest first.

    A fault is removed when it has struck its number of times.
    """

    def __init__(self) -> None:
        self.faults: list[InjectedFault] = []

    def take(self, matches: Callable[[InjectedFault], bool]) -> InjectedFault | None:
        for place, fault in enumerate(self.faults):
            if matches(fault):
                if fault.times is not None and fault.times > 1:
                    self.faults[place] = msgspec.structs.replace(fault, times=fault.times - 1)
                elif fault.times is not None:
                    del self.faults[place]
                return fault
        return None


KEY_VARIABLE = "SKEP_ENGINE_KEY"


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `fake_options.toml` by name.

    Times are in real seconds: `--time-scale` is applied.
    """
    kinds: dict[str, Callable[[str], Any]] = {
        "int": int, "float": float, "curve": TokenTimeCurve.parse, "fault": InjectedFault.parse,
        "answers": read_answers, "share": float, "above": LoadShare.parse, "script": read_script,
        "dialogues": read_dialogues,
    }  # fmt: skip
    parser = argparse.ArgumentParser(
        prog="fake_engine", allow_abbrev=False, description="A fake engine for tests."
    )
    parser.add_argument("--preset", choices=list(DATA["presets"]))
    for name, entry in DATA["options"].items():
        settings = dict(entry)
        if "type" in settings:
            settings["type"] = kinds[settings["type"]]
        parser.add_argument(f"--{name}", **settings)
    try:
        args = parser.parse_args(argv)
        if args.preset is not None:
            parser.set_defaults(**DATA["presets"][args.preset])
            args = parser.parse_args(argv)
    except (UserError, OSError, KeyError, msgspec.ValidationError) as error:
        parser.error(str(error))
    scale = args.time_scale
    curve = args.token_ms_curve or TokenTimeCurve(((1.0, args.token_ms),))
    args.speed = Speed(curve, args.ttft_ms, args.prefill_tok_s, args.overfill_slowdown, scale)
    args.load_s *= scale
    args.deaf_s = args.deaf_ms / 1000 * scale
    if args.idle_close_s is not None:
        args.idle_close_s *= scale
    args.quality = Quality(
        wrong_share=args.wrong_share,
        flip_share=args.flip_share,
        worse=args.worse_above,
        truncate=args.truncate_above,
        error=args.error_above,
        seed=args.seed,
    )
    args.key = os.environ.get(KEY_VARIABLE, "")
    return args
