"""What admission is told and what it answers, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skep.config.gateway_messages import AdmissionLimits as AdmissionLimits  # noqa: PLC0414 - it is told them
from skep.config.gateway_messages import ReplicaSpec as ReplicaSpec  # noqa: PLC0414
from skep.config.keys import Priority


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
