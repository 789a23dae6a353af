"""`keys.toml`: the clients' keys as digests, with their limits, written by `skep key` and by hand.

Comments and order of a file edited by hand are kept. A change is made under a lock, beside the
file, and moved into place: readers need no lock, and see the file before or after it.

A key is looked up by comparing its digest with every stored one, each in constant time, so that
the time of an answer says nothing of how close a guess came."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from skep.config.load import Check, file_keys, parse_toml, read_table, rules_of
from skep.config.problems import Problems
from skep.config.settings import Settings
from skep.errors import UserError
from skep.files import write_whole
from skep.paths import Paths


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


class KeySpec(msgspec.Struct, frozen=True):
    """A key as it stands in the file, and as the gateway is told of it.

    `checked` says whether its values are valid.
    """

    name: str
    sha256: str  # hexadecimal
    # the highest it may have; None: the client chooses
    priority: Annotated[str | None, Meta(extra={"key": "class"})] = None
    max_concurrent: int | None = None  # None: no limit
    rate: str | None = None  # `60/m`; None: no limit
    created: datetime | None = None
    admin: bool = False  # on the dashboard it may see and do what is the owner's


class RefusalCode(StrEnum):
    RATE_LIMITED = "rate_limited"
    TOO_MANY = "too_many_requests_of_key"
    GONE = "invalid_api_key"  # the key was removed after it was found


class KeyRefusal(msgspec.Struct, frozen=True):
    code: RefusalCode
    retry_after_s: float | None = None  # None: it depends on when the key's other answers end


class RateLimit:
    """A token bucket, kept as one number: when it will be full again.

    Time never runs backwards in it.
    """

    __slots__ = ("_burst", "_full_at", "_interval_s")

    def __init__(self, rate_per_s: float, burst: int) -> None:
        assert rate_per_s > 0
        assert burst >= 1
        self._interval_s = 1 / rate_per_s
        self._burst = burst
        self._full_at = float("-inf")

    def take(self, now: float) -> float:
        """Take a token and return 0.0; else return the seconds until there is one."""
        wait_s = self._full_at - now - (self._burst - 1) * self._interval_s
        if wait_s > _EARLY_S:
            return wait_s
        self._full_at = max(self._full_at, now) + self._interval_s
        return 0.0


class KeyRing:
    """The keys that open this endpoint, and how many requests each has under way.

    They are counted by name, also after a key is removed.
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
        """Take these keys instead.

        What is under way stays counted; a bucket stays as full as it is unless its rate
        changed.
        """
        before = self._specs
        self._specs = {spec.name: spec for spec in specs}
        assert len(self._specs) == len(specs), "two keys of one name"
        self._digests = [(bytes.fromhex(spec.sha256), spec) for spec in specs]
        old_buckets = self._buckets
        self._buckets = {}
        for name, spec in self._specs.items():
            if spec.rate is not None:
                if name in before and before[name].rate == spec.rate:
                    self._buckets[name] = old_buckets[name]
                else:
                    self._buckets[name] = RateLimit(*parse_rate(spec.rate))

    def find(self, given: bytes) -> KeySpec | None:
        """Return the key with this text. Every digest is compared, also after a match.

        Where two keys are the same, the later counts.
        """
        digest = hashlib.sha256(given).digest()
        matched = None
        for stored, spec in self._digests:
            if hmac.compare_digest(stored, digest):
                matched = spec
        return matched

    def enter(self, name: str, now: float) -> KeyRefusal | None:
        """Count a request until `leave`, or return why it is refused: then it takes no token."""
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
        """Count a request for the rate alone."""
        bucket = self._buckets.get(name)
        wait_s = bucket.take(now) if bucket is not None else 0.0
        if wait_s:
            return KeyRefusal(RefusalCode.RATE_LIMITED, wait_s)
        return None

    def leave(self, name: str) -> None:
        """End a request; called once for each `enter` that was not refused."""
        count = self.in_flight(name)
        assert count > 0, f"`{name}` left more often than it entered"
        if count == 1:
            del self._in_flight[name]
        else:
            self._in_flight[name] = count - 1


def digest_of(key: str) -> str:
    """Return a key as it is stored: its hexadecimal sha256."""
    return hashlib.sha256(key.encode()).hexdigest()


def class_for(spec: KeySpec | None, requested: str | None) -> str:
    """Return the class of a request. A key's class is a ceiling: its client may ask for less."""
    ceiling = spec.priority if spec is not None else None
    if requested is None:
        return ceiling or Priority.NORMAL.label
    label = requested.strip().lower()
    if label not in PRIORITIES:
        raise ValueError(
            f"the priority {requested[:40]!r} is unknown; known: {', '.join(PRIORITIES)}"
        )
    return max(ceiling or label, label, key=PRIORITIES.__getitem__)


def given_keys(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the keys of a request, each once: clients send `Authorization: Bearer`, `x-api-key`
    (Anthropic's), `api-key` (Azure's), or several. Names are lower case, as servers have them."""
    keys: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, *rest = value.split(maxsplit=1) or [b""]
            key = rest[0].strip() if rest and scheme.lower() == b"bearer" else b""
        elif name in (b"x-api-key", b"api-key"):
            key = value.strip()
        else:
            continue
        if key and key not in keys:
            keys.append(key)
            if len(keys) == MAX_CANDIDATES:
                break
    return keys


_HEADER = """\
# The keys that clients of skep's gateway present, as sha256 digests.
# Written by `skep key`; edit it as you like.
# A running deployment reads it again on `skep replica reload`.
"""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RATE = re.compile(r"([1-9][0-9]{0,6})/([smhd])")
_PERIOD_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BLOCK = re.compile(r"(?m)^(?=[ \t]*\[\[[ \t]*key[ \t]*\]\])")


class KeysFile(msgspec.Struct, frozen=True):
    key: tuple[KeySpec, ...] = ()


def keys_path(paths: Paths) -> Path:
    return paths.config / "keys.toml"


def new_key() -> str:
    return f"sk-skep-{secrets.token_urlsafe(24)}"  # 24 bytes are 32 characters


def checked(entry: KeySpec) -> KeySpec:
    """Return the entry of the file or the command line; raise where a value is not valid."""
    name = entry.name
    sha256 = entry.sha256.lower()
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid key name",
            hint="use 1 to 64 of the characters A-Z a-z 0-9 . _ -",
        )
    if not _SHA256.fullmatch(sha256):  # not shown: it may be a key that was put in the wrong place
        hint = "`printf %s KEY | sha256sum` makes one, `skep key add` a key and its digest"
        raise UserError(f"the sha256 of `{name}` is not 64 hexadecimal digits", hint=hint)
    if entry.priority is not None and entry.priority not in PRIORITIES:
        raise UserError(
            f"the priority {entry.priority!r} is unknown",
            hint=f"one of {', '.join(PRIORITIES)}, or none",
        )
    if entry.max_concurrent is not None and entry.max_concurrent < 1:
        raise UserError(
            f"max_concurrent {entry.max_concurrent} is below 1", hint="leave it out for no limit"
        )
    if entry.rate is not None:
        parse_rate(entry.rate)
    return replace(entry, sha256=sha256)


def parse_rate(text: str) -> tuple[float, int]:
    """Return a rate as a token bucket has it: `60/m` is one a second, 60 at once after a pause."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise UserError(
            f"{text!r} is not a rate",
            hint="write it as 2/s, 60/m, 500/h or 10000/d; 30/m for one in 2 s",
        )
    count = int(match[1])
    return count / _PERIOD_S[match[2]], count


def read_keys(path: Path) -> tuple[KeySpec, ...]:
    """Return all keys; none where there is no file."""
    return _parse(_read(path), path)


def has_keys(settings: Settings, paths: Paths) -> bool:
    """Return whether clients need a key."""
    return settings.gateway.api_key is not None or bool(read_keys(keys_path(paths)))


def add_entry(path: Path, entry: KeySpec) -> None:
    with _locked(path) as real:
        text = _read(path)
        if any(existing.name == entry.name for existing in _parse(text, path)):
            hint = f"`skep key remove {entry.name}` first, or choose another name"
            raise UserError(f"there is already a key named `{entry.name}`", hint=hint)
        changed = f"{text.rstrip() or _HEADER.rstrip()}\n\n{_block(entry)}"
        _parse(changed, path)
        write_whole(real, changed, 0o600)


def remove_entry(path: Path, name: str) -> tuple[KeySpec, ...]:
    """Remove a key, and return the entries that are left."""
    with _locked(path) as real:
        text = _read(path)
        entries = _parse(text, path)
        stay = tuple(entry for entry in entries if entry.name != name)
        if len(stay) == len(entries):
            names = ", ".join(entry.name for entry in entries) or "none"
            raise UserError(f"there is no key named {name!r}", hint=f"known: {names}")
        head, *blocks = _BLOCK.split(text)
        if len(blocks) != len(entries):
            raise UserError(
                f"{path}: not every key begins with a line [[key]]", hint="remove it by hand"
            )
        remaining = [
            block for block, entry in zip(blocks, entries, strict=True) if entry.name != name
        ]
        write_whole(real, head + "".join(remaining), 0o600)
        return stay


# Text


def _parse(text: str, path: Path) -> tuple[KeySpec, ...]:
    try:
        document = parse_toml(text, secret=True)
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read: {error}", hint="fix it by hand, or move it away"
        ) from None
    hint = f"each key is a [[key]] table of its own, with {', '.join(file_keys(KeySpec))}"
    # a value may be a key in the wrong place
    checks: Mapping[type, Check] = {KeySpec: _check_entry, KeysFile: _check_different}
    keys_file: KeysFile = read_table(
        document, KeysFile, str(path), hint, secret=True, checks=checks
    )
    return tuple(checked(entry) for entry in keys_file.key)


def _check_entry(
    entry: KeySpec, _table: Mapping[str, Any], place: str, problems: Problems
) -> None:
    try:
        checked(entry)
    except UserError as error:
        number = int(place.rpartition(".")[2]) + 1
        problems.add(UserError(f"key {number}: {error.message}", hint=error.hint))


def _check_different(
    file: KeysFile, _table: Mapping[str, Any], _place: str, problems: Problems
) -> None:
    names: set[str] = set()
    holders: dict[str, str] = {}  # names by digest
    for entry in file.key:
        holder = holders.setdefault(entry.sha256.lower(), entry.name)
        if entry.name in names:
            problems.add(
                UserError(f"two keys are named `{entry.name}`", hint="rename or delete one")
            )
        elif holder != entry.name:
            text = f"`{holder}` and `{entry.name}` have the same sha256"
            problems.add(UserError(text, hint="delete one of them"))
        names.add(entry.name)


def _block(entry: KeySpec) -> str:
    lines = ["[[key]]"]
    for name, rule in rules_of(KeySpec).items():
        value = getattr(entry, name)
        if value is not None and value is not False:
            is_time = isinstance(value, datetime)
            written = value.isoformat() if is_time else json.dumps(value)
            lines.append(f"{rule.get('key', name)} = {written}")
    return "\n".join(lines) + "\n"


# Disk


def _read(path: Path) -> str:
    """Return the file's text; raise where other users may write it: they could add a key."""
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o022:
                raise UserError(
                    f"other users can write `{path}`",
                    hint=f"check its content, then `chmod 600 {path}`",
                )
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read: {error}", hint="fix it by hand, or move it away"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Lock the file for one change, and yield its real path.

    The lock file is never deleted: else two may enter.
    """
    real = path.resolve()
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(
        real.with_name(f".{real.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield real
    finally:
        os.close(lock)
