"""What the supervisor and the gateway process say to each other, as values. `skep.wire.json_pipe`
carries them.

A field that a gateway of another version may lack has a default: `skep replica restart gateway`
may start a newer one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from skep.config.keys import KeySpec
from skep.wire.server_request import ServerLimits
from skep.wire.silence import SilenceLimits


class ReplicaSpec(msgspec.Struct, frozen=True):
    """What the gateway is told of a replica.

    `reserve` and `soft_slots` are of this replica's slots.
    """

    name: str
    model: str
    url: str
    slots: int
    # how it says that slots are busy: "slots" (llama.cpp), "metrics" (vLLM, SGLang), "" not at all
    confirms: str = ""
    engine: str = ""  # name and version, for those who ask what serves
    simulated: bool = False
    # after this time a slot whose client left counts as free, whatever the engine says
    release_bound_s: float = 30.0
    health_path: str = "/health"
    draining: bool = False  # finishes what it has, gets nothing new
    reserve: int = 0  # slots that only interactive requests may take
    # requests at once while anything but batch is there; None: all slots
    soft_slots: int | None = None
    context: int | None = None  # tokens of one sequence; None: not known
    authorization: str = ""  # what the replica wants to read in that header
    own_engine: bool = False  # skep started it: clients may ask for known paths alone
    # how skep started it: the checkpoint, and what decides about its speed
    setup: Mapping[str, Any] = {}
    # by name, what agents need of it: a state ("ok", "warning", "unknown") and a text
    checks: Mapping[str, Any] = {}
    modalities: tuple[str, ...] = ("text",)  # what it reads
    preset: str | None = None  # that it was made from

    def __repr__(self) -> str:
        """Return it without the key: this text may end in a log."""
        return f"ReplicaSpec({self.name!r}, {self.model!r}, {self.url!r})"


class AdmissionLimits(msgspec.Struct, frozen=True):
    max_queue: int = 256  # per model
    max_wait_s: float = 900.0
    attempts: int = 2  # replicas tried per request while nothing has reached its client
    # a request goes before one of the next higher class that arrived so much later
    aging_s: float = 30.0
    # without a sign of life from a replica: what is under way there is taken back
    dead_after_s: float = 60.0


class Timeouts(msgspec.Struct, frozen=True):
    """Limits of one attempt at a replica. The time in the queue does not count."""

    first_byte_s: float = 1800.0
    idle_s: float = 300.0  # between two bytes of an answer
    total_s: float = 7200.0
    # without a byte, a stream that waits gets its head; None: never
    comment_after_s: float | None = 5.0
    # the same for clients that read status codes and hang up at 300 s
    late_comment_after_s: float = 240.0
    comment_every_s: float = 5.0  # in a stream that waits


class HealthTimes(msgspec.Struct, frozen=True):
    health_every_s: float = 5.0
    health_soon_s: float = 0.5  # while the breaker is not closed
    health_timeout_s: float = 5.0


class TlsFiles(Struct, frozen=True):
    certificate: str
    key: str


class BatchPlaces(Struct, frozen=True):
    """Where the batch API keeps its files; kept whether or not requests are."""

    store: str
    files: str


class UnloadedModel(Struct, frozen=True):
    """A model that must be loaded before anybody answers."""

    state: str
    why: str | None = None


class ModelUsage(Struct, frozen=True):
    """The gateway's figures of a model."""

    busy: int = 0  # answers under way
    queued: int = 0
    idle_s: float | None = None  # since the last answer ended; None: it had none


class ReplicaFigures(Struct, frozen=True):
    name: str
    slots: int
    active: int
    releasing: int
    state: str
    model: str = ""
    url: str = ""
    engine: str = ""
    simulated: bool = False


class SessionFigures(Struct, frozen=True):
    """An agent's session, of one model: what its turns add up to, and where it stands."""

    session: str  # a digest
    model: str
    replica: str | None  # of its last turn
    conversations: int  # its own and those of its sub-agents
    turns: int
    prompt_tokens: int | None  # of its last turn
    hit_rate: float | None  # of the prompt tokens; None: no engine said
    possible_rate: float | None  # what the cache could have held of them
    cold: Mapping[str, int]  # turns, by reason
    pause_s: float | None  # between two turns, the median
    first_at: float  # unix time
    last_at: float


class GatewayStatus(Struct, frozen=True):
    """The gateway as it is.

    Counters are since its process began; two answers give the rates.
    """

    queued: int = 0
    in_flight: int = 0
    busy: dict[str, int] = {}  # by replica
    tokens: dict[str, int | float] = {}
    ended: dict[str, int | float] = {}  # by outcome
    queues: dict[str, dict[str, int]] = {}  # by model and class
    replicas: list[ReplicaFigures] = []
    models: dict[str, ModelUsage] = {}
    workers: int = 0  # processes that carry answers, besides the deciding one
    silent_workers: int = 0  # those of them that do not answer


# To the gateway


class GatewaySetup(Struct, frozen=True, tag_field="op", tag="settings"):
    """The first message.

    A later one changes limits, keys and the rest of what may change while it runs.
    """

    limits: AdmissionLimits = AdmissionLimits()
    timeouts: Timeouts = Timeouts()
    watch: HealthTimes = HealthTimes()
    server: ServerLimits = ServerLimits()
    api_key: str | None = None
    keys: tuple[KeySpec, ...] = ()
    keys_wanted: bool = False
    aliases: Mapping[str, str] = {}
    # an unknown name stands for no model, also where only one is served
    strict_models: bool = False
    origins: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    tls: TlsFiles | None = None
    store: str | None = None
    batches: BatchPlaces | None = None
    log: str | None = None
    workers: int = 1  # processes that carry answers; 1: the deciding one does it itself
    silence: SilenceLimits = SilenceLimits()  # of a process of the gateway


class ReplicaTable(Struct, frozen=True, tag_field="op", tag="replicas"):
    replicas: tuple[ReplicaSpec, ...] = ()
    models: tuple[str, ...] = ()
    dormant: Mapping[str, UnloadedModel] = {}


class LoadFailed(Struct, frozen=True, tag_field="op", tag="load_failed"):
    model: str
    why: str
    retry_after_s: float


class AskStatus(Struct, frozen=True, tag_field="op", tag="status"):
    id: int = 0


class AskSessions(Struct, frozen=True, tag_field="op", tag="sessions"):
    id: int = 0


class AskAlive(Struct, frozen=True, tag_field="op", tag="alive"):
    """Asked a few times a second, and answered at once."""

    id: int = 0


class AskDrain(Struct, frozen=True, tag_field="op", tag="drain"):
    """`hand_over`: connections wait for the next gateway from now on; else new requests are told
    to come back.
    """

    timeout_s: float
    hand_over: bool = False
    id: int = 0


class Exit(Struct, frozen=True, tag_field="op", tag="exit"):
    pass


ToGateway = (
    GatewaySetup | ReplicaTable | LoadFailed | AskStatus | AskSessions | AskAlive | AskDrain | Exit
)


# From the gateway


class Listening(Struct, frozen=True, tag_field="event", tag="listening"):
    answers_alive: bool = False  # it answers `AskAlive`; a gateway of an older version does not


class ModelWanted(Struct, frozen=True, tag_field="event", tag="wanted"):
    """Requests wait for a model that is not loaded."""

    model: str


class Alive(Struct, frozen=True, tag_field="event", tag="alive"):
    id: int = 0


class StatusAnswer(Struct, frozen=True, tag_field="event", tag="status"):
    id: int
    status: GatewayStatus


class SessionsAnswer(Struct, frozen=True, tag_field="event", tag="sessions"):
    id: int
    sessions: list[SessionFigures]


class Drained(Struct, frozen=True, tag_field="event", tag="drained"):
    id: int
    left: int  # requests that were under way when the time was over


FromGateway = Listening | ModelWanted | Alive | StatusAnswer | SessionsAnswer | Drained
