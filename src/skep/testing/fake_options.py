"""The speed model and the command line of the fake engine.

Preset `dual-3090` is one replica of a published rig: two RTX 3090, one replica on each, two slots per replica,
1024 tokens in and 1024 out. Published for the pair behind plain least-connections:

    C                   1      2      4      8
    effective tok/s    82    154    225    167
    TPOT, ms         11.2   11.9   15.1   20.4
    mean TTFT, s      1.0   0.84   1.44     19

The published delays do not multiply out to the published tok/s (4 streams at 15.1 ms and 1.44 s make 242), and two
replicas that share nothing must give twice the speed of one. The preset keeps the tok/s: 80, 161, 225, and 163 while
every replica holds two requests more than it has slots; 225 at any C when it never does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from skep.errors import UserError
from skep.testing.fake_answers import StoredAnswer, read_answers
from skep.testing.fake_faults import InjectedFault
from skep.testing.fake_quality import LoadShare, Quality, parse_share
from skep.testing.fake_streams import StreamForm, parse_form

LATE_S = 0.25  # a process that was stopped for longer than this continues from now and does not catch up


@dataclass(frozen=True, slots=True)
class TokenTimeCurve:
    """Milliseconds per token against busy slots: straight lines between points, flat outside them."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> TokenTimeCurve:
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

    curve: TokenTimeCurve
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
    """Deadlines of one answer's tokens. Each is the previous deadline plus a token time, so delays do not add up."""

    def __init__(self, speed: Speed, start_s: float, prompt_tokens: int) -> None:
        self._speed = speed
        self.deadline_s = start_s + speed.first_token_s(prompt_tokens)

    def advance(self, now_s: float, *, busy: int, waiting: int) -> float:
        base_s = self.deadline_s if now_s - self.deadline_s < LATE_S else now_s
        self.deadline_s = base_s + self._speed.token_s(busy, waiting)
        return self.deadline_s


KEY_VARIABLE = "SKEP_ENGINE_KEY"
PRESETS: dict[str, dict[str, Any]] = {
    "dual-3090": {
        "slots": 2,
        "prefill_tok_s": 1113.0,  # 1024 tokens in 0.92 s, the mean of the two published TTFT with one busy slot
        "token_ms_curve": "1:11.55,2:16.87",
        "overfill_slowdown": 1.4,
    },
}


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """Options of one fake engine. Times are in real seconds: `--time-scale` is already applied."""

    host: str
    port: int
    control_port: int | None
    report_fd: int | None
    parent_fd: int | None
    model: str
    slots: int
    ctx: int
    default_tokens: int
    speed: Speed
    load_s: float
    deaf_s: float
    idle_close_s: float | None
    form: StreamForm
    faults: tuple[InjectedFault, ...]
    crash_at_start: str | None
    exit_code: int
    grandchildren: int
    ignore_term: bool
    answers: tuple[StoredAnswer, ...]
    quality: Quality
    reasoning: str | None
    key: str = field(default="", repr=False)  # that it wants to see; empty: none


def parse_options(argv: Sequence[str]) -> FakeOptions:
    parser = make_parser()
    preset = parser.parse_args(argv).preset
    if preset is not None:
        parser.set_defaults(**PRESETS[preset])
    args = parser.parse_args(argv)
    try:
        return _options(args)
    except (UserError, OSError, ValueError, KeyError) as error:
        parser.error(str(error))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake_engine", allow_abbrev=False, description="A fake engine for tests.")
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to bind; SKEP_ENGINE_KEY in the environment sets the API key that is required",
    )
    add("--port", type=int, default=0)
    add("--control-port", type=int, help="also serve /fake/ here; stays open under the fault `refuse`")
    add("--report-fd", type=int, help="write {'url': ...} to this descriptor when listening, then close it")
    add("--parent-fd", type=int, help="exit when this descriptor ends")
    add("--model", default="fake-model")
    add("--preset", choices=list(PRESETS))
    add("--slots", type=int, default=1)
    add("--ctx", type=int, default=8192, help="tokens of one slot, prompt and answer together")
    add("--default-tokens", type=int, default=64)
    add("--ttft-ms", type=float, default=0.0)
    add("--prefill-tok-s", type=float)
    add("--token-ms", type=float, default=1.0, help="at any load, where no curve is given")
    add("--token-ms-curve", help="1:10,2:12,4:16: milliseconds per token against busy slots")
    add("--overfill-slowdown", type=float, default=1.0, help="factor on token time while requests wait inside")
    add("--time-scale", type=float, default=1.0, help="factor on every time given here")
    add("--load-s", type=float, default=0.0, help="answer 503 `Loading model` this long after the start")
    add("--deaf-ms", type=float, default=0.0, help="a slot stays busy this long after its client has gone")
    add("--idle-close-s", type=float, help="close connections idle for this long")
    add("--stream-form", default="normal", help="names joined by commas")
    add("--fault", action="append", default=[], help="a kind, or a JSON object as for POST /fake/fault")
    add("--crash-at-start", metavar="MESSAGE")
    add("--exit-code", type=int, default=1, help="of --crash-at-start")
    add("--grandchild", action="count", default=0, help="start a process of its own session that ignores SIGTERM")
    add("--ignore-term", action="store_true")
    add("--answers", type=Path, help="JSON lines of {'prompt': part of the prompt, 'answer': text, 'wrong': texts}")
    add("--reasoning", metavar="TEXT", help="streamed before each chat answer, as reasoning_content")
    add_quality(add)
    return parser


def add_quality(add: Callable[..., Any]) -> None:
    """Add the options for answer quality. `C:S` means a share S while more than C requests are inside."""
    add("--wrong-share", default="0", metavar="S", help="of stored answers are wrong, by a hash of the prompt")
    add("--flip-share", default="0", metavar="S", help="of stored answers: right becomes wrong, wrong becomes right")
    add("--worse-above", metavar="C:S", help="a share S of right answers becomes wrong while more than C are inside")
    add("--truncate-above", metavar="C:S", help="finish_reason length after half the words")
    add("--error-above", metavar="C:S", help="HTTP 500")
    add("--seed", type=int, default=0, help="random seed, drawn from in the order of the requests")


def _options(args: argparse.Namespace) -> FakeOptions:
    scale = args.time_scale
    form = parse_form(args.stream_form)
    curve = TokenTimeCurve.parse(args.token_ms_curve or f"1:{args.token_ms}")
    same = {field.name: getattr(args, field.name) for field in fields(FakeOptions) if field.name in args}
    converted: dict[str, Any] = {
        "speed": Speed(curve, args.ttft_ms, args.prefill_tok_s, args.overfill_slowdown, scale),
        "load_s": args.load_s * scale,
        "deaf_s": args.deaf_ms / 1000 * scale,
        "idle_close_s": None if args.idle_close_s is None else args.idle_close_s * scale,
        "form": form if args.reasoning is None else replace(form, reasoning=True),
        "faults": tuple(InjectedFault.parse(text) for text in args.fault),
        "grandchildren": args.grandchild,
        "answers": read_answers(args.answers) if args.answers else (),
        "quality": Quality(
            wrong_share=parse_share(args.wrong_share),
            flip_share=parse_share(args.flip_share),
            worse=LoadShare.parse(args.worse_above),
            truncate=LoadShare.parse(args.truncate_above),
            error=LoadShare.parse(args.error_above),
            seed=args.seed,
        ),
        "key": os.environ.get(KEY_VARIABLE, ""),
    }
    return FakeOptions(**same | converted)
