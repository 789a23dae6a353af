"""The messages between supervisor, Ray driver and replica actors.

Those that go through Ray are sent as plain documents: versions of skep may differ.
"""

from __future__ import annotations

from msgspec import Struct

from skep.engines.agent_checks import AgentCheck
from skep.engines.base import Launch
from skep.supervisor.lifecycle import RestartPolicy
from skep.supervisor.log_reader import LogPart


class ReplicaReport(Struct, frozen=True):
    """A replica as its actor reports it, or the driver while it has no actor."""

    name: str
    state: str
    why: str | None
    node: str | None = None
    url: str | None = None
    pid: int | None = None
    restarts: int = 0
    engine: str | None = None  # its version
    node_id: str | None = None
    launch: Launch | None = None  # as started
    incarnation: str | None = None  # of its actor; None: there is no actor
    checks: tuple[AgentCheck, ...] = ()  # of what agents need


# To the driver


class DriverSetup(Struct, frozen=True, tag_field="op", tag="setup"):
    """The first message."""

    address: str
    hive: str
    policy: RestartPolicy
    gateway: str  # the name of the gateway that the driver works for
    key: str  # that the engines ask for


class WantReplicas(Struct, frozen=True, tag_field="op", tag="wanted"):
    """All replicas that are to run; others are ended. Sent again with each change."""

    launches: tuple[Launch, ...]


class RestartReplica(Struct, frozen=True, tag_field="op", tag="restart"):
    name: str
    id: int = 0


class EndReplica(Struct, frozen=True, tag_field="op", tag="end"):
    name: str
    id: int = 0


class ReadLog(Struct, frozen=True, tag_field="op", tag="log"):
    """Ask for the last lines of a log, or for what was written since `offset`."""

    name: str
    offset: int | None
    lines: int
    id: int = 0


class Leave(Struct, frozen=True, tag_field="op", tag="leave"):
    """End all replicas."""

    id: int = 0


Question = RestartReplica | EndReplica | ReadLog | Leave
Order = WantReplicas | Question
ToDriver = DriverSetup | Order


# From the driver


class Joined(Struct, frozen=True, tag_field="event", tag="joined"):
    address: str


class ReplicaRows(Struct, frozen=True, tag_field="event", tag="replicas"):
    """The reports of all replicas."""

    rows: tuple[ReplicaReport, ...]


class HeadState(Struct, frozen=True, tag_field="event", tag="head"):
    lost: bool


class Answer(Struct, frozen=True, tag_field="event", tag="answer"):
    id: int
    error: str | None = None
    log: LogPart | None = None


class DriverFailed(Struct, frozen=True, tag_field="event", tag="failed"):
    error: str
    hint: str | None
    exit_code: int
    taken_over: bool = False


FromDriver = Joined | ReplicaRows | HeadState | Answer | DriverFailed
