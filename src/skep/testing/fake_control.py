"""The fake engine's own endpoints under /fake/: state, faults, and waiting for a state instead of asking again.

GET /fake/state, POST /fake/fault {"kind": ..., ...}, POST /fake/wait {"running": 1}: answers when it is so.
Also owns the listener, because `refuse` closes it; the control port has one that stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from skep.errors import UserError
from skep.testing.fake_faults import Fault, FaultKind
from skep.testing.fake_http import Connection, HttpRequest
from skep.testing.fake_options import Options
from skep.testing.fake_server import FakeServer

COUNTERS = frozenset({"requests", "hangups", "connections_total", "max_running", "max_inside"})


class Control:
    """One fake engine's server, its listeners and those who wait for a state of it."""

    def __init__(self, options: Options, grandchildren: tuple[int, ...] = ()) -> None:
        self._options = options
        self._grandchildren = grandchildren
        self._listener: asyncio.Server | None = None
        self._opening: asyncio.Future[None] | None = None
        self._port = options.port
        self._waiters: list[tuple[Mapping[str, Any], Connection]] = []
        self.server = FakeServer(options, control=self.handle, changed=self._changed)

    async def open(self) -> dict[str, str]:
        """Listen; the addresses under the names of the report line."""
        await self._listen()
        host = self._options.host
        report = {"url": f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"}
        if self._options.control_port is not None:
            loop = asyncio.get_running_loop()
            own = await loop.create_server(lambda: Connection(self), "127.0.0.1", self._options.control_port)
            report["control"] = f"http://127.0.0.1:{own.sockets[0].getsockname()[1]}"
            self._own_listener = own
        for fault in self._options.faults:
            self._apply(fault)
        return report

    # As the control port's handler: its connections are not counted.

    def opened(self, connection: Connection) -> None:
        pass

    def closed(self, connection: Connection) -> None:
        self._waiters = [waiter for waiter in self._waiters if waiter[1] is not connection]

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        try:
            self._route(request, connection)
        except (UserError, ValueError, TypeError) as error:
            connection.send_json(400, {"error": {"message": str(error)}})

    def _route(self, request: HttpRequest, connection: Connection) -> None:
        match request.method, request.path:
            case "GET", "/fake/state":
                connection.send_json(200, self.state())
            case "POST", "/fake/fault":
                self._apply(Fault.from_json(json.loads(request.body)))
                self._when_listening(lambda: connection.send_json(200, {}))
            case "POST", "/fake/wait":
                self._waiters.append((json.loads(request.body), connection))
                self._changed()
            case _:
                connection.send_json(404, {"error": {"message": f"no route {request.path}"}})

    def state(self) -> dict[str, Any]:
        server = self.server
        last = server.last_request
        return {
            "requests": server.requests,
            "running": server.table.running,
            "waiting": server.table.waiting,
            "max_running": server.table.max_running,
            "max_inside": server.table.max_inside,
            "hangups": server.hangups,
            "connections_open": len(server.connections),
            "connections_total": server.connections_total,
            "output_tokens": server.output_tokens,
            "grandchildren": list(self._grandchildren),
            "last_path": last.path if last else None,
            "last_headers": dict(last.headers) if last else None,
            "last_body_sha256": hashlib.sha256(last.body).hexdigest() if last else None,
        }

    def _changed(self) -> None:
        if not self._waiters:
            return
        state = self.state()
        met = [waiter for waiter in self._waiters if is_met(waiter[0], state)]
        self._waiters = [waiter for waiter in self._waiters if waiter not in met]
        for _, connection in met:
            connection.send_json(200, state)

    def _apply(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        if fault.kind is FaultKind.REFUSE:
            self._refuse()
            if fault.for_s is not None:
                loop.call_later(fault.for_s, self._listen_again)
        elif fault.kind is FaultKind.NONE:
            self.server.faults.clear()
            self._listen_again()
        else:
            self.server.faults.add(fault)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _listen_again(self) -> None:
        if self._listener is None and self._opening is None:
            self._opening = asyncio.ensure_future(self._listen())

    def _when_listening(self, then: Callable[[], None]) -> None:
        """At once, unless the listener is just being opened again."""
        if self._opening is None:
            then()
        else:
            self._opening.add_done_callback(lambda _: then())

    async def _listen(self) -> None:
        def connect() -> Connection:
            return Connection(self.server, idle_close_s=self._options.idle_close_s)

        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(connect, self._options.host, self._port, backlog=1024)
        self._opening = None
        self._port = self._listener.sockets[0].getsockname()[1]


def is_met(wanted: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Counters only grow: reached is enough. Everything else must be equal."""
    return all(state[name] >= value if name in COUNTERS else state[name] == value for name, value in wanted.items())
