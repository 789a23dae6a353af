"""The first answers to a client, before anything heavy is imported.

A client that starts asks who is there and which tools there are, and many wait for that with the
first turn. Those answers do not depend on anything: they are stored in `first_answers.json` as the
whole server gives them. Anything else is left to that server, which is imported then and hears the
opening again. A client that calls no tool costs nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import msgspec

from skep import __version__

STORED_ANSWERS = Path(__file__).with_name("first_answers.json")
VERSION_MARK = "@VERSION@"  # stands for skep's version in the stored answers
# what a request of the protocol without a handshake says of its client
META_PREFIX = "io.modelcontextprotocol/"
REPLAYED_ID = "skep-opening"  # the id of an `initialize` that has been answered already
READ_BYTES = 1 << 16
MOST_LINE_MIB = 64  # a line is held in memory, and longer than that it is a mistake
TOO_LONG = {
    "code": -32600,
    "message": (
        f"a line of more than {MOST_LINE_MIB} MiB is not read: give tasks as a file "
        "(`swarm_dispatch_file`)"
    ),
}


class FirstAnswers(msgspec.Struct, frozen=True):
    """Results by method.

    `handshake`: after `initialize`; `stateless`: where each request names the protocol.
    """

    versions: tuple[str, ...]  # of the handshake, oldest first
    stateless_version: str
    handshake: dict[str, msgspec.Raw]
    stateless: dict[str, msgspec.Raw]


class McpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: str
    jsonrpc: Literal["2.0"]
    params: dict[str, Any] | None = None
    id: int | str | None = None  # None: a notification


def read_first_answers() -> FirstAnswers:
    text = STORED_ANSWERS.read_text(encoding="utf-8").replace(VERSION_MARK, __version__)
    return msgspec.json.decode(text, type=FirstAnswers)


class Doorman:
    """Answers what is stored.

    `answer` returns None where the whole server has to go on, with `replay` before it.
    """

    def __init__(self, stored: FirstAnswers) -> None:
        self._stored = stored
        self._initialize: dict[str, Any] | None = None  # its parameters
        self._initialized = False

    def replay(self) -> list[bytes]:
        """Return the lines that tell another server what the client has said: none, or the
        handshake.
        """
        lines: list[dict[str, Any]] = []
        if self._initialize is not None:
            lines.append({"id": REPLAYED_ID, "method": "initialize", "params": self._initialize})
        if self._initialized:
            lines.append({"method": "notifications/initialized"})
        return [msgspec.json.encode({"jsonrpc": "2.0", **line}) for line in lines]

    def answer(self, line: bytes) -> bytes | None:
        """Return the line to send, empty for a notification."""
        try:
            request = msgspec.json.decode(line, type=McpRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if request.id is None:
            return self._notice(request)
        result = self._result(request)
        if result is None:
            return None
        reply = {"jsonrpc": "2.0", "id": request.id, "result": result}
        return msgspec.json.encode(reply) + b"\n"

    def _notice(self, request: McpRequest) -> bytes | None:
        if request.method == "notifications/initialized" and self._initialize is not None:
            self._initialized = True
            return b""
        if request.method == "notifications/cancelled":
            return b""
        return None

    def _result(self, request: McpRequest) -> msgspec.Raw | None:
        params = request.params or {}
        if request.method == "initialize":
            return self._begin(params)
        if set(params) - {"_meta"}:  # a page, a filter: what is stored is the first page
            return None
        if self._initialize is not None:
            return self._stored.handshake.get(request.method)
        if self._is_stateless(params.get("_meta")):
            return self._stored.stateless.get(request.method)
        return None

    def _is_stateless(self, meta: Any) -> bool:
        if not isinstance(meta, dict):
            return False
        named = (
            meta.get(f"{META_PREFIX}clientInfo"),
            meta.get(f"{META_PREFIX}clientCapabilities"),
        )
        has_client = all(isinstance(part, dict) for part in named)
        return (
            has_client
            and meta.get(f"{META_PREFIX}protocolVersion") == self._stored.stateless_version
        )

    def _begin(self, params: dict[str, Any]) -> msgspec.Raw | None:
        named = (params.get("clientInfo"), params.get("capabilities"))
        has_client = all(isinstance(part, dict) for part in named)
        version = params.get("protocolVersion")
        if self._initialize is not None or not has_client or not isinstance(version, str):
            return None
        self._initialize = params
        result = msgspec.json.decode(self._stored.handshake["initialize"])
        if version in self._stored.versions:
            result["protocolVersion"] = version
        return msgspec.Raw(msgspec.json.encode(result))


class ClientWire:
    """The client's end, kept apart from descriptors 0 and 1: what a tool or a child prints stays
    out of it.
    """

    def __init__(self) -> None:
        self.read_fd = os.dup(0)
        self.write_fd = os.dup(1)
        for descriptor in (self.read_fd, self.write_fd):
            os.set_blocking(descriptor, True)  # some clients hand over pipes that do not block
        self.unread = bytearray()
        # A line is sent whole: one thread answers, another refuses what it reads.
        self._sending = Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def read_line(self) -> bytes | None:
        """Return a line without its end, also a last one that has none; None: the client has gone.

        A line that is too long is refused and left out.
        """
        looked_at = 0
        while (end := self.unread.find(b"\n", looked_at)) < 0:
            looked_at = len(self.unread)
            if looked_at > MOST_LINE_MIB << 20:
                self._refuse_line()
                looked_at = 0
            elif not self._read_more():
                return self._take(looked_at) or None
        line = self._take(end)
        del self.unread[:1]
        return line

    def _refuse_line(self) -> None:
        """Answer the line that has begun with an error, and read to its end."""
        reply = {"jsonrpc": "2.0", "id": None, "error": TOO_LONG}
        self.send(msgspec.json.encode(reply) + b"\n")
        end = -1
        while end < 0:
            self.unread.clear()
            if not self._read_more():
                return
            end = self.unread.find(b"\n")
        del self.unread[: end + 1]

    def _read_more(self) -> bool:
        """Return whether the client is still there."""
        data = os.read(self.read_fd, READ_BYTES)
        self.unread += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        data = bytes(self.unread[:count])
        del self.unread[:count]
        return data

    def send(self, line: bytes) -> None:
        with self._sending:
            while line:
                line = line[os.write(self.write_fd, line) :]


def open_conversation(doorman: Doorman, wire: ClientWire) -> bytes | None:
    """Answer until the whole server is needed and return the line that it begins with; None: the
    client has gone.

    A signal ends the process at once: runs go on by themselves, and nothing else is held.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: os._exit(0))
    try:
        while (line := wire.read_line()) is not None:
            reply = doorman.answer(line) if line.strip() else b""
            if reply is None:
                return line
            wire.send(reply)
    except OSError:
        pass
    return None
