"""A relay worker: `python -m skep.gateway.worker --link-fd N --accept-fd M --number K`.

Gets connections from the deciding gateway process, reads requests, asks that process for a slot,
and carries the answer. Decides nothing, keeps nothing: when the link ends, the decider is gone,
and so is this process."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter

import msgspec

from skep.config import gateway_messages
from skep.config.gateway_messages import ReplicaSpec, ToGateway
from skep.gateway import worker_messages as messages
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Action, Arrival, Event, Forward
from skep.gateway.batch.routes import BATCH_ROUTES
from skep.gateway.main import (
    HEALTH_ROUTES,
    OPEN_ROUTES,
    OWN_ROUTES,
    collect_rarely,
    run_process,
    server_tls,
)
from skep.gateway.proxied_request import NOT_HANDED_ON, Exchange
from skep.gateway.proxy import TICK_S, Proxy
from skep.gateway.request_accounting import Metrics, RequestAccounting
from skep.gateway.request_log import RequestColumns
from skep.gateway.sessions import RequestSession
from skep.gateway.worker_messages import Happened, MessageSocket
from skep.wire.client import Pool, WireFailure
from skep.wire.heads import Origin, ResponseHead, lines_of
from skep.wire.listen import ACCEPTED_AT_ONCE, FILES_RETRY_S, receive_connection
from skep.wire.server import HttpServer
from skep.wire.server_request import ServerRequest

LEAVING_TICK_S = 0.02
NOT_ASKED_ON = NOT_HANDED_ON | {b"expect"}
Link = MessageSocket[messages.ToWorker]
_order = msgspec.json.Decoder(ToGateway)


class RemoteAdmission(Admission):
    """Tells the decider what happens. The decisions come back as messages, so that no method here
    returns any.
    """

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self.retriable: set[str] = set()  # requests that another replica could be asked for
        self.last_heard: dict[str, float] = {}  # by replica: when its last byte came

    def spec(self, name: str) -> ReplicaSpec:
        return self._replicas[name].spec

    def happened(
        self,
        event: Event,
        request_id: str,
        now: float,  # noqa: ARG002
        flag: bool = False,
    ) -> list[Action]:
        self._link.send(Happened(event, request_id, flag))
        if event is Event.FINISHED:
            # Before the client has its last bytes: its next request may go to another worker.
            self._link.flush()
        return []

    def heard(self, spec: ReplicaSpec, at: float) -> None:
        self.last_heard[spec.name] = max(at, self.last_heard.get(spec.name, 0.0))

    def answering(self, request_id: str, now: float, complaint: bool = False) -> None:
        self.happened(Event.ANSWERING, request_id, now, complaint)

    def finished(self, request_id: str, now: float, answered: bool = False) -> list[Action]:
        return self.happened(Event.FINISHED, request_id, now, answered)

    def may_retry(self, request_id: str, now: float) -> bool:  # noqa: ARG002
        return request_id in self.retriable


class RemoteAccounting(RequestAccounting):
    def __init__(self, link: Link) -> None:
        super().__init__(Metrics(), lambda _row: None, lambda _model: True)
        self._link = link

    def ended(self, exchange: Exchange, now: float) -> None:
        """Report it at once: what a killed process has not reported is lost."""
        asyncio.get_running_loop().call_soon(self.settle)
        super().ended(exchange, now)

    def account(
        self,
        row: RequestColumns,
        now: float,
        events: int,
        leased: bool,
        session: RequestSession | None = None,
    ) -> None:
        self._link.send(messages.Accounted(row, now, events, leased, session))


class WorkerProxy(Proxy):
    def __init__(
        self, link: Link, door: socket.socket, setup: gateway_messages.GatewaySetup, number: int
    ) -> None:
        self.remote = RemoteAdmission(link)
        super().__init__(self.remote, RemoteAccounting(link), setup)
        self._link = link
        self._door = door
        self._decider = Pool(Origin("decider", 80), connect=self._connect_decider)
        self._prefix += f"-{number}"
        self.open_routes |= HEALTH_ROUTES
        self.open_routes |= dict.fromkeys(OPEN_ROUTES, self._ask_decider)
        self.routes |= dict.fromkeys((*OWN_ROUTES, *BATCH_ROUTES), self._ask_decider)

    # What the decider does instead

    def charge(self, key: str) -> None:
        """The decider does, with the arrival."""

    def await_load(self, exchange: Exchange, now: float) -> None:
        """The decider says who waits for a model."""

    def place(self, exchange: Exchange, arrival: Arrival, now: float) -> None:  # noqa: ARG002
        plan = exchange.plan
        key = plan.key.name if plan.key is not None else None
        self._link.send(
            messages.Arrived(arrival, plan.path, key, plan.light, exchange.loads_model)
        )

    def leave(self, exchange: Exchange, actions: list[Action]) -> None:  # noqa: ARG002
        del self.exchanges[exchange.id]
        self.remote.retriable.discard(exchange.id)
        if not exchange.leased:
            self._link.send(Happened(Event.FINISHED, exchange.id))

    # What the decider says

    def take(self, message: messages.ToWorker) -> None:
        assert not isinstance(message, messages.Order | messages.Settle)
        exchange = self.exchanges.get(message.id)
        if exchange is None:  # its client has left
            if isinstance(message, messages.Granted):
                self._link.send(Happened(Event.NOT_SENT, message.id))
            return
        match message:
            case messages.Granted(_, replica, queued_s, attempt, leased, may_retry):
                exchange.leased = leased
                if may_retry:
                    self.remote.retriable.add(exchange.id)
                else:
                    self.remote.retriable.discard(exchange.id)
                exchange.forward(
                    Forward(exchange.id, self.remote.spec(replica), queued_s, attempt)
                )
            case messages.Refused(_, status, headers, body, code):
                exchange.answer(status, headers, body, code, [])
            case messages.Withdrawn():
                exchange.abandon_replica()
            case messages.Waits() if exchange.is_commenting or exchange.hears_of_loading:
                exchange.send_keepalive(time.monotonic())

    def _ask_decider(self, request: ServerRequest) -> None:
        """Have a request for one of the gateway's own paths answered there."""
        request.extra = None  # it says by itself what a web page may read
        method = b"GET" if request.method == b"HEAD" else request.method
        lines = lines_of(header for header in request.headers if header[0] not in NOT_ASKED_ON)
        head = b"%b %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (
            method,
            request.target,
            lines,
            len(request.body),
        )
        call = self._decider.send(head, DeciderAnswer(request), request.body)
        request.on_gone = call.abort
        request.on_pause = call.pause
        request.on_resume = call.resume

    def _connect_decider(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._door, [b"c"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours


class DeciderAnswer:
    """Hands on what the deciding process answers to a request for one of the gateway's own
    paths.
    """

    takes_chunks = False

    def __init__(self, request: ServerRequest) -> None:
        self._request = request

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        lines = lines_of(header for header in head.headers if header[0] not in NOT_HANDED_ON)
        self._request.start_with(head.status, lines, head.length)

    def on_body(self, data: bytes, at: float) -> None:  # noqa: ARG002
        self._request.write(data)

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:
        """It takes none."""

    def on_end(self, at: float) -> None:  # noqa: ARG002
        self._request.finish()

    def on_failure(self, failure: WireFailure, at: float) -> None:  # noqa: ARG002
        self._request.cut()


class RelayWorker:
    def __init__(self, number: int) -> None:
        self._number = number
        self._ended = asyncio.Event()
        self._link: Link = MessageSocket(messages.ToWorker, self._take, self._ended.set)
        self._proxy: WorkerProxy | None = None
        self._tls: ssl.SSLContext | None = None
        self._taken = 0
        self._taking = False  # it looks for connections that the decider has handed over
        self._leaving = False

    async def run(self, link: socket.socket, door: socket.socket) -> None:
        door.setblocking(False)
        self._door = door
        await self._link.connect(link)
        tasks = [asyncio.create_task(self._clock()), asyncio.create_task(self._report())]
        await self._ended.wait()
        for task in tasks:
            task.cancel()
        if self._proxy is not None:
            self._proxy.abort_requests()
            await self._server.close()
            await self._proxy.close()
            self._proxy.accounts.settle()
        self._link.close()
        await asyncio.sleep(0)

    def _take(self, message: messages.ToWorker) -> None:
        if isinstance(message, messages.Order):
            self._obey(_order.decode(message.message))
            return
        assert self._proxy is not None
        if isinstance(message, messages.Settle):
            self._proxy.accounts.settle()
            self._tell_state(message.number)
        else:
            self._proxy.take(message)

    def _obey(self, order: ToGateway) -> None:
        if self._proxy is None:
            assert isinstance(order, gateway_messages.GatewaySetup)
            self._set_up(order)
            return
        match order:
            case gateway_messages.GatewaySetup():
                self._proxy.set_policy(order)
            case gateway_messages.ReplicaTable(replicas, models, unloaded):
                self._proxy.set_replicas(replicas, models, unloaded)
            case gateway_messages.LoadFailed(model, why, retry_after_s):
                self._proxy.load_failed(model, why, retry_after_s)
            case gateway_messages.AskDrain(_, hand_over):
                self._leaving = True
                if hand_over:
                    self._server.stop_accepting()
            case gateway_messages.Exit():
                self._ended.set()

    def _set_up(self, setup: gateway_messages.GatewaySetup) -> None:
        self._proxy = proxy = WorkerProxy(self._link, self._door, setup, self._number)
        share = setup.workers
        limits = setup.server
        own_limits = msgspec.structs.replace(
            limits,
            max_connections=-(-limits.max_connections // share),
            held_bytes=limits.held_bytes // share,
        )
        self._server = HttpServer(proxy.handle, own_limits, proxy.check_head)
        self._server.on_room = self._resume_taking
        self._tls = server_tls(setup)
        collect_rarely()
        self._resume_taking()

    def _resume_taking(self) -> None:
        """Look for connections that were handed over, and ask for more, if there is room."""
        if not self._taking and self._server.has_room and not self._ended.is_set():
            self._taking = True
            asyncio.get_running_loop().add_reader(self._door, self._take_connections)
            self._tell_state()

    def _pause_taking(self) -> None:
        self._taking = False
        asyncio.get_running_loop().remove_reader(self._door)
        self._tell_state()

    def _take_connections(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._server.has_room:
                self._pause_taking()
                return
            handed_over = receive_connection(self._door)
            if handed_over is None:
                return
            if handed_over.is_over:
                self._pause_taking()
                self._ended.set()  # the decider is gone
                return
            self._taken += 1
            if handed_over.client is None:
                self._server.connections.lose()
                self._pause_taking()
                asyncio.get_running_loop().call_later(FILES_RETRY_S, self._resume_taking)
                return
            self._server.take(handed_over.client, self._tls)

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._proxy is not None:
                await self._proxy.tick()

    async def _report(self) -> None:
        """Report the state, which is the sign of life too. So it does not wait for a look at all
        requests, which takes longer.
        """
        while True:
            await asyncio.sleep(LEAVING_TICK_S if self._leaving else TICK_S)
            if self._proxy is not None and not self._link.is_behind:
                self._tell_state()

    def _tell_state(self, settled: int = 0) -> None:
        """Report the state. What takes a look at every connection or request is reported only
        where the decider asks for it.
        """
        assert self._proxy is not None
        events = Counter[str]()
        if settled:
            for exchange in self._proxy.exchanges.values():
                if exchange.granted is not None and exchange.leased:
                    exchange.count_passed(time.monotonic())
                    events[exchange.granted.replica.name] += exchange.events
        heard = self._proxy.remote.last_heard
        self._proxy.remote.last_heard = {}
        active = self._server.active if settled or self._leaving else 0
        state = messages.WorkerState(
            taken=self._taken,
            open=len(self._server.open),
            heard=heard,
            active=active,
            events=events,
            settled=settled,
            full=not self._taking,
            refused=self._server.connections.refused,
        )
        self._link.send(state)


async def run_worker(link_fd: int, accept_fd: int, number: int) -> None:
    await RelayWorker(number).run(socket.socket(fileno=link_fd), socket.socket(fileno=accept_fd))


if __name__ == "__main__":
    run_process(run_worker, "--link-fd", "--accept-fd", "--number")
