"""What admission is told and what it answers, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from skep.config.keys import Priority


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What the gateway is told of a replica. `reserve` and `soft_slots` are of this replica's slots."""

    name: str
    model: str
    url: str
    slots: int
    confirms: str = ""  # how it says that slots are busy: "slots" (llama.cpp), "metrics" (vLLM, SGLang), "" not at all
    engine: str = ""  # name and version, for those who ask what serves
    simulated: bool = False
    release_bound_s: float = 30.0  # a slot whose client left is free after so long, whatever the engine says
    health_path: str = "/health"
    draining: bool = False  # finishes what it has, gets nothing new
    reserve: int = 0  # slots that only interactive requests may take
    soft_slots: int | None = None  # requests at once while anything but batch is there; None: all slots
    context: int | None = None  # tokens of one sequence; None: not known
    authorization: str = field(default="", repr=False)  # what the replica wants to read in that header
    own_engine: bool = False  # skep started it: clients may ask for known paths alone


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    max_queue: int = 256  # per model
    max_wait_s: float = 900.0
    attempts: int = 2  # replicas tried per request while nothing has reached its client
    aging_s: float = 30.0  # a request goes before one of the next higher class that arrived so much later
    dead_after_s: float = 60.0  # without a sign of life: what is under way in a replica is taken back


@dataclass(slots=True)
class Arrival:
    """A request as far as admission cares. `flow` shares fairly with the other flows of its class.

    Like `Forward` not frozen, because one is made for every request and freezing doubles the cost; nobody changes it.
    """

    request_id: str
    model: str
    priority: Priority = Priority.NORMAL
    flow: str = ""
    conversation: int | None = None  # a digest of its beginning or of its session; None: any replica will do
    prompt_bytes: int = 0
    max_wait_s: float | None = None  # shorter than the limit, if the client says so


class RejectCode(Enum):
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UNKNOWN_MODEL = "model_not_found"
    SHUTTING_DOWN = "shutting_down"
    REPLICA_LOST = "replica_lost"
    LOAD_FAILED = "model_load_failed"


@dataclass(slots=True)
class Forward:
    """Send it there."""

    request_id: str
    replica: ReplicaSpec
    queued_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Reject:
    request_id: str
    code: RejectCode
    retry_after_s: float | None = None
    why: str | None = None  # where the code alone does not say it


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The replica shows no sign of life: give the request up there, and say so with `Admission.gave_up`."""

    request_id: str


Action = Forward | Reject | Withdraw
