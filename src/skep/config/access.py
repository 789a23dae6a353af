"""Who may use the dashboard and the MCP server: the keys of `keys.toml` as it is now, and
SKEP_API_KEY.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skep.config.keys import KeyRing, KeySpec, digest_of, read_keys
from skep.errors import UserError
from skep.units import one_line

log = logging.getLogger("skep.config.access")
LONGEST_KEY = 1024
# how often an answer that is still being sent is checked for whether its key is still accepted
RECHECK_S = 0.5
_OWN_NAME = "$SKEP_API_KEY"  # no key of the file can have this name

_FileState = tuple[int, int, int, int] | None


class AcceptedKeys:
    """The keys that are accepted now. The file is read again whenever it has changed.

    Where it cannot be read, the keys that were read last stay.
    """

    def __init__(self, path: Path, own_key: str | None = None, *, must_read: bool = True) -> None:
        """`own_key`: SKEP_API_KEY, whose holder is an admin.

        `must_read`: raise UserError where the file cannot be read; else there are no keys until it
        can."""
        self._path = path
        self._own_keys: tuple[KeySpec, ...] = ()
        if own_key:
            self._own_keys = (KeySpec(_OWN_NAME, digest_of(own_key), admin=True),)
        self._state: _FileState = None
        self._take(())
        if must_read:
            self._state = _state_of(path)
            self._take(read_keys(path))

    def __repr__(self) -> str:
        return f"<AcceptedKeys {len(self)} keys of {self._path}>"

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, given: Iterable[bytes]) -> KeySpec | None:
        """Return what is known of the first given key that is accepted; None: none is."""
        self._refresh()
        specs = (self._ring.find(key) for key in given if len(key) <= LONGEST_KEY)
        return next((spec for spec in specs if spec is not None), None)

    def current(self, spec: KeySpec) -> KeySpec | None:
        """Return what the file says now of a key; None: it is no longer accepted.

        Another key of the same name is another key.
        """
        self._refresh()
        return self._by_digest.get(spec.sha256)

    def _refresh(self) -> None:
        state = _state_of(self._path)
        if state == self._state:
            return
        # Taken before the file is read: a change in between is seen the next time.
        self._state = state
        try:
            self._take(read_keys(self._path))
        except UserError as error:
            log.error("keys.unreadable error=%s", one_line(error.message))

    def _take(self, keys: tuple[KeySpec, ...]) -> None:
        accepted = (*keys, *self._own_keys)
        self._ring = KeyRing(accepted)
        self._by_digest = {spec.sha256: spec for spec in accepted}


async def answer_while(
    admitted: Callable[[], bool], app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Call `app`, and tell it that the client hung up as soon as `admitted` returns False.

    The answer ends there.
    """
    unfinished = False

    async def receive_while_admitted() -> Message:
        while True:
            try:
                async with asyncio.timeout(RECHECK_S):
                    return await receive()
            except TimeoutError:
                if not admitted():
                    return {"type": "http.disconnect"}

    async def send_noting(message: Message) -> None:
        nonlocal unfinished
        unfinished = message["type"] == "http.response.start" or message.get("more_body", False)
        await send(message)

    await app(scope, receive_while_admitted, send_noting)
    if unfinished:
        await send({"type": "http.response.body", "body": b""})


def _state_of(path: Path) -> _FileState:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def host_of(given: str) -> str:
    """Return the name in a `Host` header, without its port and brackets; empty where it is no host
    and port.
    """
    if any(character in given for character in "@/?#\\"):  # what follows or precedes is not a name
        return ""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an `Origin` header names the host that was asked."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
