"""What the store keeps: runs, their requests and samples, the gateway's requests, calibrations.

`None` means unknown, never zero. A request's times in `_s` are seconds since its run began, on one
monotonic clock."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from skep.store.rows import StoredAs


def _packed(times: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(times)}d", *times)


def _unpacked(blob: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(blob) // 8}d", blob)


Index = Annotated[int, StoredAs("idx")]
ColdReason = Literal["first", "moved", "evicted", "restarted", "changed"]


class RunState(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    # By Ctrl-C or a signal; stored as "failed" with this word as the error.
    INTERRUPTED = "interrupted"
    INCOMPLETE = "incomplete"  # the writer vanished before it could say how the run ended

    @property
    def is_final(self) -> bool:
        return self is not RunState.RUNNING


class StoredRun(msgspec.Struct, frozen=True):
    """One benchmark run as stored.

    `config`, `host` and `engine` are JSON objects, kept as they were.
    """

    id: str
    # "sweep", "serial-vs-swarm", "ab", "open", "classes", "replay", "mixed", "quality", ...
    kind: str
    state: RunState
    created_at: float  # unix time
    ended_at: float | None
    model: str
    url: str
    fingerprint: str  # digest of workload, engine version and host: equal for repeats
    config: Mapping[str, Any]  # concurrency, tasks, runs, max_tokens, seed, ...
    host: Mapping[str, Any]  # the client's machine, as `HostFacts.as_json` says
    engine: Mapping[str, Any]  # what the endpoint told: version, slots, replicas, model file
    simulated: bool
    skep_version: str
    error: str | None = None
    requests: int = 0  # rows stored so far


class EngineTimings(msgspec.Struct, frozen=True):
    """What the engine itself reported for one request."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, taken from a cache
    prompt_ms: float | None = None
    output_tokens: int | None = None
    decode_ms: float | None = None
    decode_tok_s: float | None = None
    queue_ms: float | None = None  # inside the engine, before it began


class Request(msgspec.Struct, frozen=True):
    """One request as the client saw it, with the engine's own figures beside it.

    Tokens come from `usage`.
    """

    level: int  # concurrency asked for; 0 for warm-up
    repeat: int  # 0, 1, ...: which run of that level
    index: Index  # which task of that run
    kind: str  # implement, test, fix, refactor, document; replay
    started_s: float
    ended_s: float
    first_byte_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None  # HTTP status, None when no answer came
    error_kind: str | None = None  # None: the request succeeded
    error: str | None = None
    finish_reason: str | None = None
    replica: str | None = None
    queued_ms: float | None = None
    engine: EngineTimings = msgspec.field(default_factory=EngineTimings)
    # Of each event that carried content; equal where one read brought several events.
    arrivals_s: Annotated[tuple[float, ...], StoredAs("arrivals", _packed, _unpacked)] = ()
    prompt: str | None = None  # None: it was not stored
    answer: str | None = None
    # Streamed apart from the answer; None: it was not stored, or there was none.
    reasoning: str | None = None
    traffic: str = ""  # which kind of traffic, where a load mixes several
    scheduled_s: float | None = None  # when it was to be sent, where a schedule says so
    session: int | None = None  # which conversation, and which of its turns, from 0
    turn: int | None = None

    @property
    def ok(self) -> bool:
        return self.error_kind is None

    @property
    def due_s(self) -> float:
        """Return the begin of latency: a late client must not make a server look quick."""
        if self.scheduled_s is None:
            return self.started_s
        return min(self.scheduled_s, self.started_s)


class GatewayRequest(msgspec.Struct, frozen=True):
    """One request as the gateway saw it, from its arrival to its one end.

    Seconds are after the arrival.
    """

    id: str
    arrived_at: float  # unix time
    path: str
    model: str | None
    priority: str  # "interactive" | "normal" | "batch"
    flow: str | None  # whose request: the name of an API key or of an agent
    replica: str | None
    attempts: int
    # "answered" | "refused": by the gateway itself | "broken": cut after its first byte |
    # "hung_up"
    outcome: str
    status: int | None
    code: str | None  # of the gateway's own error
    streamed: bool
    queued_s: float | None
    first_byte_s: float | None
    ended_s: float
    prompt_tokens: int | None  # tokens are None where nobody said
    cached_tokens: int | None
    output_tokens: int | None
    request_bytes: int
    response_bytes: int
    # Digests of names, or of how the conversation begins; None: a request of no session.
    session: str | None = None
    conversation: str | None = None
    turn: int | None = None  # of its conversation, from 1; None: it failed, or has no session
    pause_s: float | None = None  # since the last turn ended
    tool_call: bool | None = None  # the answer ends in one
    cold: ColdReason | None = None  # why the cache held less than it could; None: it held all
    cold_at: int | None = None  # the token at which the prompt changed
    possible_tokens: int | None = None  # of the prompt, that the cache could have held


class ClientSample(msgspec.Struct, frozen=True):
    """How the measuring process itself fared during one run of one level."""

    level: int
    repeat: int
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    cpu_share: float | None  # of one core; of the busiest process where there are several
    client_limited: bool
    # Requests in flight while the level was full, as a share of the concurrency asked for.
    delivered: float | None = None
    processes: int = 1


class LevelFact(msgspec.Struct, frozen=True):
    """A fact of one run of one level that is no request, such as energy or the engine's own
    counters.
    """

    level: int
    repeat: int
    name: str
    fact: Mapping[str, Any]


class CalibrationRecord(msgspec.Struct, frozen=True):
    """The measurements of one machine with one setup, and the factors fitted to them, which
    multiply predicted times.

    The newest of a kind counts. `host` is a fingerprint of the machine, or the address of one
    elsewhere. `document` has all that it takes to fit anew.
    """

    id: str
    created_at: float  # unix time
    host: str
    model: str
    engine: str  # as the planner names it: vllm, llamacpp
    quant: str
    layout: str
    rig: str
    simulated: bool
    decode: float
    batch: float | None  # None: no higher level was measured
    prompt: float
    document: Mapping[str, Any]
    skep_version: str
