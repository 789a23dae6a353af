"""API keys: who asks, with what priority, how often and how many at once. Knows nothing of HTTP, files or clocks.

Only digests of keys are kept. A key is looked up by comparing its digest with every stored one, each in constant time,
so that the time of an answer says nothing of how close a guess came.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Priority(IntEnum):
    """The classes of requests; the lower number goes first."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2

    @property
    def label(self) -> str:
        return LABELS[self]


LABELS = ("interactive", "normal", "batch")
PRIORITIES = dict(zip(LABELS, Priority, strict=True))


MAX_CANDIDATES = 4  # keys looked at per request, so that a request cannot buy digests without end
_EARLY_S = 1e-6  # a client that waited as told must not be refused for a rounding of the clock


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What the gateway is told of a key."""

    name: str
    sha256: str  # hexadecimal
    priority: str | None = None  # the highest it may have; None: the client chooses
    max_concurrent: int | None = None  # None: no limit
    rate_per_s: float | None = None  # None: no limit
    burst: int = 1  # requests at once after a pause; only with a rate


class RefusalCode(StrEnum):
    RATE_LIMITED = "rate_limited"
    TOO_MANY = "too_many_requests_of_key"
    GONE = "invalid_api_key"  # the key was removed after it was found


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    code: RefusalCode
    retry_after_s: float | None = None  # None: it depends on when the key's other answers end


class RateLimit:
    """A token bucket, kept as one number: when it will be full again. Time never runs backwards in it."""

    __slots__ = ("_burst", "_full_at", "_interval_s")

    def __init__(self, rate_per_s: float, burst: int) -> None:
        assert rate_per_s > 0
        assert burst >= 1
        self._interval_s = 1 / rate_per_s
        self._burst = burst
        self._full_at = float("-inf")

    def take(self, now: float) -> float:
        """0.0: a token was taken. Else nothing was, and so many seconds remain until there is one."""
        wait_s = self._full_at - now - (self._burst - 1) * self._interval_s
        if wait_s > _EARLY_S:
            return wait_s
        self._full_at = max(self._full_at, now) + self._interval_s
        return 0.0


class KeyRing:
    """The keys that open this endpoint, and what each has under way.

    Counts are kept by name and outlive their key: an answer of a key that was removed still ends.
    """

    def __init__(self, specs: Sequence[KeySpec] = ()) -> None:
        self._specs: dict[str, KeySpec] = {}
        self._digests: list[tuple[bytes, KeySpec]] = []
        self._buckets: dict[str, RateLimit] = {}
        self._in_flight: dict[str, int] = {}
        self.replace(specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"<KeyRing {len(self)} keys, {sum(self._in_flight.values())} in flight>"

    def in_flight(self, name: str) -> int:
        return self._in_flight.get(name, 0)

    def replace(self, specs: Sequence[KeySpec]) -> None:
        """All keys anew. What is under way stays counted; a bucket stays as full as it is unless its rate changed."""
        before, self._specs = self._specs, {spec.name: spec for spec in specs}
        assert len(self._specs) == len(specs), "two keys of one name"
        self._digests = [(bytes.fromhex(spec.sha256), spec) for spec in specs]
        buckets = self._buckets
        self._buckets = {
            name: buckets[name] if _same_rate(before.get(name), spec) else RateLimit(spec.rate_per_s, spec.burst)
            for name, spec in self._specs.items()
            if spec.rate_per_s is not None
        }

    def find(self, given: bytes) -> KeySpec | None:
        """Every digest is compared, also after a match. Where two keys are the same, the later one counts."""
        digest = hashlib.sha256(given).digest()
        found = None
        for stored, spec in self._digests:
            if hmac.compare_digest(stored, digest):
                found = spec
        return found

    def enter(self, name: str, now: float) -> KeyRefusal | None:
        """None: the request is counted until `leave`. A refused one is not, and takes no token."""
        spec = self._specs.get(name)
        if spec is None:
            return KeyRefusal(RefusalCode.GONE)
        if spec.max_concurrent is not None and self.in_flight(name) >= spec.max_concurrent:
            return KeyRefusal(RefusalCode.TOO_MANY)
        refusal = self.charge(name, now)
        if refusal is None:
            self._in_flight[name] = self.in_flight(name) + 1
        return refusal

    def charge(self, name: str, now: float) -> KeyRefusal | None:
        """A request that counts for the rate alone."""
        bucket = self._buckets.get(name)
        wait_s = bucket.take(now) if bucket is not None else 0.0
        return KeyRefusal(RefusalCode.RATE_LIMITED, wait_s) if wait_s else None

    def leave(self, name: str) -> None:
        """Once for each `enter` that was not refused."""
        count = self.in_flight(name)
        assert count > 0, f"`{name}` left more often than it entered"
        if count == 1:
            del self._in_flight[name]
        else:
            self._in_flight[name] = count - 1


def _same_rate(before: KeySpec | None, spec: KeySpec) -> bool:
    return before is not None and (before.rate_per_s, before.burst) == (spec.rate_per_s, spec.burst)


def digest_of(key: str) -> str:
    """As stored: hexadecimal sha256."""
    return hashlib.sha256(key.encode()).hexdigest()


def class_for(spec: KeySpec | None, asked: str | None) -> str:
    """A key's class is a ceiling: its client may ask for less, never for more."""
    own = spec.priority if spec is not None else None
    if asked is None:
        return own or Priority.NORMAL.label
    wanted = asked.strip().lower()
    if wanted not in PRIORITIES:
        raise ValueError(f"the priority {asked[:40]!r} is unknown; known: {', '.join(PRIORITIES)}")
    return max(own or wanted, wanted, key=PRIORITIES.__getitem__)


def given_keys(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys of a request, each once: clients send `Authorization: Bearer`, `x-api-key` (Anthropic's), `api-key`
    (Azure's), or several of them. Names are lower case, as the server hands them over.
    """
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, *rest = value.split(maxsplit=1) or [b""]
            key = rest[0].strip() if rest and scheme.lower() == b"bearer" else b""
        elif name in (b"x-api-key", b"api-key"):
            key = value.strip()
        else:
            continue
        if key and key not in found:
            found.append(key)
            if len(found) == MAX_CANDIDATES:
                break
    return found
