"""What the server allows a client, and when its patience ends. Numbers and arithmetic; does no I/O, reads no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from skep.units import KIB, MIB


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times are kept by a sweep over all connections every `sweep_s`: each may be exceeded by two such steps."""

    head_bytes: int = 64 * KIB  # target and headers; also for what stands between the chunks of a body
    headers: int = 256
    body_bytes: int = 64 * MIB
    held_bytes: int = 512 * MIB  # of all bodies being read or waiting for an answer; at least two of the largest
    pipelined: int = 16  # requests waiting behind the one being answered
    pipelined_bytes: int = MIB  # their heads and bodies, together with the one being read
    max_connections: int = 10_000  # fewer where the process may not open so many files
    head_timeout_s: float = 30.0  # from a request's first byte to the end of its head; also for a new connection
    body_idle_s: float = 30.0  # without a byte of the body
    request_timeout_s: float = 300.0  # from a request's first byte to its last
    idle_timeout_s: float = 300.0  # of a keep-alive connection between requests
    write_idle_s: float = 120.0  # an answer is waiting all the while and the client takes less of it than
    write_bytes: int = 32 * KIB  # these: nobody reads a token a second, and a slot waits behind it
    linger_s: float = 2.0  # after a refusal, for what the client still sends
    sweep_s: float = 0.5


class HeldBodies:
    """The bytes of all bodies that one server holds."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limits: ServerLimits) -> None:
        self.bytes = 0
        self.limit = max(limits.held_bytes, 2 * limits.body_bytes)

    def __repr__(self) -> str:
        return f"<HeldBodies {self.bytes} of {self.limit} bytes>"


class ConnectionStage(Enum):
    """Where a connection stands, as the sweep finds it."""

    NEW = "new"  # not a byte yet
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWERING = "answering"
    ENDED = "ended"  # nothing more is read: refused, or closing


class SweepAction(Enum):
    CLOSE = "close"
    TIMED_OUT = "timed out"  # say so (408), then close
    ABORT = "abort"


class ClientTimeouts:
    """One connection's clocks. Asked by the sweep only: the way of a request sets no timer and reads no clock.

    Progress is seen by comparing counters with those of the last look.
    """

    __slots__ = ("_arrived", "_left", "_left_at", "_limits", "_message", "_message_at", "_since", "_stage")

    def __init__(self, limits: ServerLimits, now: float) -> None:
        self._limits = limits
        self._stage = ConnectionStage.NEW
        self._message = 0
        self._message_at = now  # when the message was first seen
        self._since = now  # when the stage was entered, or last got on
        self._arrived = 0
        self._left = 0  # bytes the client had taken when it was last found waiting for nothing, or quick enough
        self._left_at = now

    def look(
        self, now: float, stage: ConnectionStage, *, message: int, arrived: int, unsent: int, left: int
    ) -> SweepAction | None:
        """`message` counts whole requests, `arrived` bytes of the body being read, `left` bytes the client took."""
        limits = self._limits
        if unsent == 0:
            self._left, self._left_at = left, now
        elif now - self._left_at > limits.write_idle_s:
            if left - self._left < limits.write_bytes:
                return SweepAction.ABORT
            self._left, self._left_at = left, now
        if message != self._message or self._stage not in (ConnectionStage.HEAD, ConnectionStage.BODY):
            self._message_at = now
        if stage is not self._stage or message != self._message or arrived != self._arrived or unsent:
            self._since = now
        self._stage, self._message, self._arrived = stage, message, arrived
        return self._verdict(now - self._since, now - self._message_at)

    def _verdict(self, waited_s: float, message_s: float) -> SweepAction | None:
        limits = self._limits
        match self._stage:
            case ConnectionStage.NEW:
                return SweepAction.CLOSE if waited_s > limits.head_timeout_s else None
            case ConnectionStage.IDLE:
                return SweepAction.CLOSE if waited_s > limits.idle_timeout_s else None
            case ConnectionStage.HEAD:
                late = message_s > min(limits.head_timeout_s, limits.request_timeout_s)
            case ConnectionStage.BODY:
                late = waited_s > limits.body_idle_s or message_s > limits.request_timeout_s
            case ConnectionStage.ENDED:
                return SweepAction.ABORT if waited_s > limits.linger_s else None
            case ConnectionStage.ANSWERING:
                late = False
        return SweepAction.TIMED_OUT if late else None
