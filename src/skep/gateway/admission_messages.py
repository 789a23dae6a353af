"""What admission is told of requests and what it answers, as values. Knows nothing of how it
decides."""

from __future__ import annotations

from enum import Enum, IntEnum

import msgspec

from skep.config.gateway_messages import ReplicaSpec
from skep.config.keys import Priority


class Arrival(msgspec.Struct, array_like=True):
    """A request as admission sees it.

    Not frozen, which would cost time: one is made for every request, like `Forward`.
    """

    request_id: str
    model: str
    priority: Priority = Priority.NORMAL
    flow: str = ""
    # A digest of its beginning or of its session; None: any replica will do.
    conversation: int | None = None
    prompt_bytes: int = 0
    max_wait_s: float | None = None  # shorter than the limit, if the client says so
    session: int | None = None  # a digest of its session's name; None: it names none
    fingerprint: int = 0  # of what is asked: the same when the client asks again
    patience_s: float | None = None  # what its client bears without an answer; None: not known
    # Admission's own notes
    arrived_at: float = 0.0  # of one that came back to its place: when it came first
    queued_at: float = 0.0
    gave_up_slot: bool = False  # it came back after it had had a slot and gave it up
    deadline: float = 0.0
    attempts: int = 0
    avoid: str | None = None  # the replica that failed it last
    avoid_until: float = 0.0  # until then it rather waits for another replica


class Event(IntEnum):
    """What becomes of a request, as `Admission.happened` hears it; it has a method for each."""

    ANSWERING = 0
    FINISHED = 1
    TURNED_AWAY = 2
    FAILED = 3
    HUNG_UP = 4
    GAVE_UP = 5
    NOT_SENT = 6


class RejectCode(Enum):
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    WAIT_TOO_LONG = "wait_too_long"
    UNKNOWN_MODEL = "model_not_found"
    SHUTTING_DOWN = "shutting_down"
    REPLICA_LOST = "replica_lost"
    LOAD_FAILED = "model_load_failed"


class Forward(msgspec.Struct):
    """Send the request to this replica."""

    request_id: str
    replica: ReplicaSpec
    queued_s: float
    attempt: int


class Reject(msgspec.Struct, frozen=True):
    request_id: str
    code: RejectCode
    retry_after_s: float | None = None
    why: str | None = None  # where the code alone does not say it


class Withdraw(msgspec.Struct, frozen=True):
    """The replica shows no sign of life: give the request up there, and say so with
    `Admission.gave_up`.
    """

    request_id: str


Action = Forward | Reject | Withdraw
