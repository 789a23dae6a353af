"""Recorded traffic as sessions: traces in Mooncake's format and in AIPerf's.

Mooncake's lines are requests of a cluster: a time, two lengths and the digests of blocks of the
prompt. A request that goes on with an earlier prompt is of the same session. AIPerf's lines are
turns with the name of their session, or whole sessions with their turns; lengths are of what is
new in a turn. Texts of a trace are not sent: a replay has texts of our own, as long as those. A
file is read line by line; what is kept of it is bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from skep.catalog.session_shapes import ScriptedTurn, SessionScript
from skep.errors import UserError
from skep.units import shortened
from skep.workload.prompts import TokenCalibration

BLOCK_TOKENS = 512  # of one digest in Mooncake's traces
MOST_TURNS = 100_000  # of one trace; the largest public ones have a quarter of that
MOST_BLOCKS = 5_000_000  # of all prompts, as their digests
# With fewer whole blocks in common two requests are of two sessions: a single one may be that of
# a system prompt.
FEWEST_BLOCKS = 2
LONGEST_LINE_BYTES = 32 << 20
USUAL_OUTPUT_TOKENS = 250  # where a trace does not say how long an answer is
LONGEST_PAUSE_S = 3600.0
# Of the window: a replay's texts are not of exactly the length that was asked for.
WINDOW_SHARE = 0.95
FORMATS_HINT = (
    "a line is Mooncake's (timestamp, input_length, output_length, hash_ids), or AIPerf's "
    "(session_id with input_length, text_input or messages; or turns)"
)

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class TraceTurn(msgspec.Struct, frozen=True):
    """One turn of a whole session, as AIPerf writes them."""

    text: str | None = None
    texts: list[str] = []
    role: str | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    delay: Milliseconds | None = None
    timestamp: Milliseconds | None = None


class TraceLine(msgspec.Struct, frozen=True):
    """One line of a trace, of whatever format."""

    timestamp: Milliseconds | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[int] | None = None
    session_id: str | int | None = None
    delay: Milliseconds | None = None
    text_input: str | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    message_mode: str = "history"
    turns: list[TraceTurn] | None = None

    @property
    def is_of_mooncake(self) -> bool:
        """Return whether the line is a request that names no session."""
        if self.session_id is not None or self.input_length is None:
            return False
        return self.hash_ids is not None

    @property
    def is_turn(self) -> bool:
        """Return whether the line is a turn of a session that it names."""
        if self.session_id is None:
            return False
        inputs = (self.input_length, self.text_input, self.text, self.messages)
        return any(given is not None for given in inputs)


@dataclass
class RecordedSession:
    """A session while its trace is read."""

    shared_name: str
    shared_tokens: int = 0
    turns: list[ScriptedTurn] = field(default_factory=list)
    prompt_tokens: int = 0  # of the last turn
    blocks: int = 0  # of the last prompt, whole ones
    messages: int = 0  # of the last prompt
    asked_ms: float | None = None  # when the last turn was sent

    def script(self) -> SessionScript:
        """Return the session; what its first turn shares with others is not new in it."""
        first = self.turns[0]
        shared = min(self.shared_tokens, max(0, first.new_tokens - 1))
        turns = (replace(first, new_tokens=first.new_tokens - shared), *self.turns[1:])
        return SessionScript(self.shared_name, shared, turns)


def read_trace(path: Path) -> list[SessionScript]:
    """Return the sessions of a trace, in the order in which they begin.

    Raises UserError for a file that is empty, cut, of another format or too large.
    """
    reader = _TraceReader(path.name)
    for number, line in _lines(path):
        reader.take(number, line)
    if not reader.sessions:
        raise UserError(f"trace `{path.name}` is empty", hint=FORMATS_HINT)
    return [session.script() for session in reader.sessions]


def _lines(path: Path) -> Iterator[tuple[int, TraceLine]]:
    """Yield the lines of a file with their numbers."""
    decoder = msgspec.json.Decoder(TraceLine)
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                if data.strip():
                    yield number, _decoded(decoder, data, f"line {number} of `{path.name}`")
    except OSError as error:
        raise UserError(f"cannot read `{path}`: {error.strerror}", hint=None) from None


def _decoded(decoder: msgspec.json.Decoder[TraceLine], data: bytes, name: str) -> TraceLine:
    if len(data) > LONGEST_LINE_BYTES:
        limit = LONGEST_LINE_BYTES >> 20
        raise UserError(f"{name} is longer than {limit} MiB", hint=FORMATS_HINT)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise UserError(f"{name} is no request of a trace: {error}", hint=FORMATS_HINT) from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply", hint=FORMATS_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not data.endswith(b"\n"):
            hint = "the file ends in the middle of a line: fetch it again, or remove that line"
            raise UserError(f"{name} is cut", hint=hint) from None
        start = shortened(data.decode("utf-8", "replace").strip(), 40)
        raise UserError(f"{name} is not JSON: `{start}`", hint=FORMATS_HINT) from None


SHARED = -1  # in place of a session's number: several sessions begin so


class _TraceReader:
    """Puts the lines of a trace into sessions."""

    def __init__(self, name: str) -> None:
        self.sessions: list[RecordedSession] = []
        self._name = name
        self._by_id: dict[str, RecordedSession] = {}
        # By the digest of a prompt's first blocks: the number of the session that begins so.
        self._owners: dict[int, int] = {}
        self._turns = 0

    def take(self, number: int, line: TraceLine) -> None:
        if line.turns is not None:
            self._take_session(line)
        elif line.is_of_mooncake:
            self._take_request(line, line.hash_ids or [])
        elif line.is_turn:
            self._take_turn(line)
        else:
            raise UserError(
                f"line {number} of `{self._name}` is no request of a trace", hint=FORMATS_HINT
            )
        if self._turns > MOST_TURNS or len(self._owners) > MOST_BLOCKS:
            raise UserError(
                f"trace `{self._name}` is too large: more than {MOST_TURNS:,} turns, or "
                f"{MOST_BLOCKS:,} blocks",
                hint="replay a part of it: `head -n 10000 FILE > PART`",
            )

    def _take_request(self, line: TraceLine, hash_ids: Sequence[int]) -> None:
        """Take in a request of Mooncake's; it continues the session whose last prompt it holds."""
        beginnings = _beginnings(hash_ids)
        common = sum(key in self._owners for key in beginnings)
        owner = SHARED
        if common:
            owner = self._owners[beginnings[common - 1]]
        prompt_tokens = line.input_length or 0
        if owner == SHARED or not self._goes_on(owner, common, prompt_tokens):
            self._begin_forked(beginnings, common, owner)
            owner = len(self.sessions) - 1
        session = self.sessions[owner]
        held_tokens = session.prompt_tokens
        if session.turns:
            held_tokens += session.turns[-1].output_tokens
        session.prompt_tokens = prompt_tokens
        session.blocks = _whole_blocks(prompt_tokens, len(hash_ids))
        for key in beginnings[: session.blocks]:
            self._owners.setdefault(key, owner)
        self._add(session, line, prompt_tokens - held_tokens)

    def _goes_on(self, number: int, common: int, prompt_tokens: int) -> bool:
        """Return whether a prompt holds all of the last one of a session, and more."""
        session = self.sessions[number]
        if common < max(FEWEST_BLOCKS, session.blocks):
            return False
        return prompt_tokens > session.prompt_tokens

    def _begin_forked(self, beginnings: Sequence[int], common: int, owner: int) -> None:
        """Begin a session that has `common` blocks in common with earlier ones."""
        root = beginnings[0] if beginnings else len(self.sessions)
        session = RecordedSession(f"trace {root}", common * BLOCK_TOKENS)
        if owner != SHARED:
            earlier = self.sessions[owner]
            earlier.shared_tokens = max(earlier.shared_tokens, session.shared_tokens)
        for key in beginnings[:common]:
            self._owners[key] = SHARED
        self.sessions.append(session)

    def _take_turn(self, line: TraceLine) -> None:
        """Take in a turn of AIPerf's that names its session."""
        name = str(line.session_id)
        session = self._by_id.get(name)
        if session is None:
            session = RecordedSession(f"trace {len(self.sessions)}")
            self._by_id[name] = session
            self.sessions.append(session)
        new_tokens = _new_tokens(line, session.messages)
        if line.messages is not None and line.message_mode != "delta":
            session.messages = len(line.messages)
        self._add(session, line, new_tokens)

    def _take_session(self, line: TraceLine) -> None:
        """Take in a session of AIPerf's with all of its turns; a first turn of role `system` is a
        beginning that other sessions may share.
        """
        turns = [*(line.turns or [])]
        session = RecordedSession(f"trace {len(self.sessions)}")
        if turns and turns[0].role == "system":
            system = turns.pop(0)
            session.shared_name = f"system {_digest(system)}"
            session.shared_tokens = _turn_tokens(system)
        system_tokens = session.shared_tokens
        for turn in turns:
            self._add(session, turn, system_tokens + _turn_tokens(turn))
            system_tokens = 0
        if session.turns:
            self.sessions.append(session)

    def _add(self, session: RecordedSession, line: TraceLine | TraceTurn, new_tokens: int) -> None:
        output_tokens = line.output_length or USUAL_OUTPUT_TOKENS
        turn = ScriptedTurn(
            new_tokens=max(1, new_tokens),
            output_tokens=output_tokens,
            pause_s=_pause_s(line, session) if session.turns else 0.0,
        )
        session.turns.append(turn)
        session.asked_ms = line.timestamp
        self._turns += 1


def _beginnings(hash_ids: Sequence[int]) -> list[int]:
    """Return the digest of the first block, of the first two blocks together, and so on."""
    digests = []
    digest = 0
    for block in hash_ids:
        digest = hash((digest, block))
        digests.append(digest)
    return digests


def _turn_tokens(turn: TraceTurn) -> int:
    if turn.input_length is not None:
        return turn.input_length
    return _text_tokens([turn.text or "", *turn.texts])


def _digest(turn: TraceTurn) -> int:
    return zlib.crc32(msgspec.json.encode(turn))


def _whole_blocks(tokens: int, blocks: int) -> int:
    """Return how many blocks of a prompt are full: the last one may change when it grows."""
    return min(blocks, max(1, tokens // BLOCK_TOKENS))


def _new_tokens(line: TraceLine, earlier_messages: int) -> int:
    """Return what is new in a turn of AIPerf's."""
    if line.input_length is not None:
        return line.input_length
    text = line.text_input or line.text
    if text is not None:
        return _text_tokens([text])
    messages = line.messages or []
    if line.message_mode != "delta":
        messages = messages[earlier_messages:]
    return _text_tokens(
        str(message.get("content")) for message in messages if message.get("role") != "assistant"
    )


def _text_tokens(texts: Sequence[str] | Iterator[str]) -> int:
    calibration = TokenCalibration()
    return max(1, round(sum(calibration.tokens(text) for text in texts)))


def _pause_s(line: TraceLine | TraceTurn, session: RecordedSession) -> float:
    """Return the pause before a turn as the trace says it, else the time since the turn before was
    sent, which includes that one's answer.
    """
    pause_ms = 0.0
    if line.delay is not None:
        pause_ms = line.delay
    elif line.timestamp is not None and session.asked_ms is not None:
        pause_ms = max(0.0, line.timestamp - session.asked_ms)
    return min(LONGEST_PAUSE_S, pause_ms / 1000)


def held_in(script: SessionScript, window_tokens: int) -> SessionScript | None:
    """Return the session up to the last turn that a window holds; None: it holds none."""
    limit = WINDOW_SHARE * window_tokens
    fitting = 0
    for prompt, turn in zip(script.prompts(), script.turns, strict=True):
        if prompt + turn.output_tokens > limit:
            break
        fitting += 1
    if not fitting:
        return None
    return replace(script, turns=script.turns[:fitting])


def trace_sessions(
    scripts: Sequence[SessionScript], name: str, window_tokens: int | None
) -> list[SessionScript]:
    """Return the sessions of a trace that a window holds, cut where they would leave it.

    Raises UserError where it holds none.
    """
    if window_tokens is None:
        return list(scripts)
    held = [held_in(script, window_tokens) for script in scripts]
    fitting = [script for script in held if script is not None]
    if not fitting:
        shortest = min(script.prompts()[0] for script in scripts)
        raise UserError(
            f"no session of `{name}` fits: the shortest begins with {shortest:,} tokens, the "
            f"context is {window_tokens:,}",
            hint="serve with a longer context",
        )
    return fitting


def repeated(scripts: Sequence[SessionScript], count: int) -> list[SessionScript]:
    """Return `count` sessions: those of a trace, again from the first where it has fewer."""
    return list(islice(cycle(scripts), count))
