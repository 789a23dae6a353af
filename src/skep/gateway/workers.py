"""Relay workers as the deciding gateway process sees them: it starts them, accepts connections and
hands each to the worker with the fewest, and decides for their requests as for its own. Knows
nothing of the clients' connections after that.

A worker that dies gives back its slots, and another one is started. Requests for the gateway's own
paths come here on connections that workers open."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from subprocess import DEVNULL
from typing import Any

from skep.config.keys import RefusalCode
from skep.gateway import worker_messages as messages
from skep.gateway.admission_messages import Action, Event, Forward
from skep.gateway.error_format import RequestRefused
from skep.gateway.proxied_request import Exchange
from skep.gateway.proxy import TICK_S, Proxy
from skep.gateway.request_policy import RequestPlan
from skep.host.processes import ProcessorWait
from skep.wire.heads import Headers
from skep.wire.json_pipe import ENCODER
from skep.wire.listen import ConnectionAcceptor, receive_connection
from skep.wire.server import HttpServer
from skep.wire.silence import Liveness, SilenceLimits, SilenceWatch

BACKLOG = 4096  # more than that lose a second each, by TCP's next attempt
FULL_S = 0.005  # until connections are offered again to workers that could take no more
RESTART_DELAYS_S = (0.05, 0.2, 1.0, 5.0)
STABLE_S = 30.0
END_S = 2.0
LATE_S = 0.01
SETTLE_S = 0.5  # less than the supervisor waits for the status


class RelayedRequest(Exchange):
    """A request whose connections are a worker's: its worker hears what is decided about it."""

    def __init__(
        self, worker: Worker, arrived: messages.Arrived, plan: RequestPlan, proxy: Proxy
    ) -> None:
        self.id = arrived.arrival.request_id
        self.model = arrived.arrival.model
        self.plan = plan
        self.worker = worker
        self.flow = arrived.arrival.flow
        self.request_bytes = arrived.arrival.prompt_bytes
        self.arrived_at = self.heard_at = time.monotonic()
        self._arrived = arrived
        self._relay = self._proxy = proxy

    @property
    def loads_model(self) -> bool:
        return self._arrived.loads_model

    @property
    def hears_of_loading(self) -> bool:
        """Whether it has to be told of it: always, as its worker looks."""
        return True

    def forward(self, action: Forward) -> None:
        self.granted = self._attempt = action
        self.granted_at = time.monotonic()
        may_retry = self._relay.admission.may_retry(self.id, self.granted_at)
        self.worker.link.send(
            messages.Granted(
                self.id,
                action.replica.name,
                action.queued_s,
                action.attempt,
                self.leased,
                may_retry,
            )
        )

    def answer(
        self, status: int, headers: Headers, body: bytes, code: str, actions: list[Action]
    ) -> None:
        self.worker.link.send(messages.Refused(self.id, status, headers, body, code))
        self.end("refused", actions)

    def send_keepalive(self, now: float) -> None:  # noqa: ARG002
        self.worker.link.send(messages.Waits(self.id))

    def keep_alive(self, now: float) -> None:
        """Its worker does."""

    def abandon_replica(self) -> None:
        self.worker.link.send(messages.Withdrawn(self.id))

    def check_time(self, now: float) -> None:
        """Its worker does."""

    def cut(self, code: str, why: str) -> None:
        """Its worker does, which is told to end too."""

    def happened(self, event: Event, actions: list[Action]) -> None:
        """Carry out what admission makes of an event."""
        if event is Event.FINISHED:
            self.end("answered", actions)
        elif event is Event.HUNG_UP:
            self.end("hung_up", actions)
        elif event is not Event.ANSWERING:  # the attempt has failed
            self._attempt = None
            self._relay.carry_out(actions)

    def end(self, outcome: str, actions: list[Action]) -> None:
        """End it here, without an entry in the accounts: its worker makes that."""
        self.outcome = outcome
        self._relay.leave(self, actions)

    def lose(self) -> None:
        """End it: its worker is dead, and the client's connection with it.

        The engine may work on, so the slot goes into release.
        """
        self.outcome = "broken"
        self.code = "stream_cut"
        actions: list[Action] = []
        if self.leased:
            actions = self._relay.admission.hung_up(self.id, time.monotonic())
        self._relay.ended(self, actions)


class Worker:
    """One worker process: carries out what its messages say."""

    def __init__(
        self,
        proxy: Proxy,
        server: HttpServer,
        on_state: Callable[[], None],
        silence: SilenceLimits,
    ) -> None:
        """`server` answers what the worker does not, and `on_state` is called for each state that
        the worker reports.
        """
        self.liveness = Liveness.ANSWERS
        self._silence = SilenceWatch(silence)
        self.state = messages.WorkerState()
        self.events: dict[str, int] = {}  # by replica: of streams under way, as it last settled
        self.passed = 0  # connections handed to it
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.link: messages.MessageSocket[messages.FromWorker] = messages.MessageSocket(
            messages.FromWorker, self._take, self._lost
        )
        self.refused = Counter[str]()  # connections that it could not serve, by reason
        self._proxy = proxy
        self._server = server
        self._on_state = on_state
        self._late: set[str] = set()  # requests that are asked for again at once
        self._settling: dict[int, asyncio.Event] = {}
        self._numbers = itertools.count(1)

    @property
    def load(self) -> int:
        """The connections that it has, those on their way to it included."""
        return self.state.open + self.passed - self.state.taken

    @property
    def takes_connections(self) -> bool:
        """Whether it is to get connections."""
        if self.ended.is_set() or self.liveness is not Liveness.ANSWERS:
            return False
        return self.ready.is_set() and not self.state.full

    async def start(self, argv: list[str], number: int) -> None:
        ours, theirs = socket.socketpair()
        self._door, their_door = socket.socketpair()
        self._door.setblocking(False)
        with theirs, their_door:
            fds = (theirs.fileno(), their_door.fileno())
            sockets = ("--link-fd", str(fds[0]), "--accept-fd", str(fds[1]))
            self.process = await asyncio.create_subprocess_exec(
                *argv,
                *sockets,
                "--number",
                str(number),
                pass_fds=fds,
                stdin=DEVNULL,
                stdout=DEVNULL,
            )
        self._processor_wait = ProcessorWait(self.process.pid)
        await self.link.connect(ours)
        asyncio.get_running_loop().add_reader(self._door, self._accept)

    def _accept(self) -> None:
        """Take a connection on which the worker asks for the gateway's own paths."""
        handed_over = receive_connection(self._door)
        if handed_over is None:
            return
        if handed_over.is_over:  # it is gone, as its link is about to say
            asyncio.get_running_loop().remove_reader(self._door)
        elif handed_over.client is not None:
            self._server.take(handed_over.client)
        else:
            self._server.connections.lose()

    def hand_over(self, client: socket.socket) -> bool:
        """Hand a connection to the worker, and return whether it took it."""
        try:
            socket.send_fds(self._door, [b"c"], [client.fileno()])
        except OSError:
            return False
        self.passed += 1
        return True

    def check_silence(self, now: float) -> None:
        """Kill a worker that hangs; its link ends with it. Called a few times a second."""
        if self.ended.is_set():
            return
        self.liveness = self._silence.look(now, waited_s=self._processor_wait.since_last(now))
        if self.liveness is Liveness.HANGS:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def settle(self) -> None:
        """Wait until it has told of all requests that have ended by now."""
        if self.liveness is not Liveness.ANSWERS:
            return
        number = next(self._numbers)
        settled = self._settling[number] = asyncio.Event()
        self.link.send(messages.Settle(number))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await settled.wait()
        self._settling.pop(number, None)

    def _take(self, message: messages.FromWorker) -> None:
        now = time.monotonic()
        match message:
            case messages.Happened(event, request_id, flag):
                self._happened(event, request_id, flag, now)
            case messages.Arrived():
                self._arrived(message)
            case messages.Accounted(row, ended_at, events, leased, session):
                self._proxy.accounts.account(row, ended_at, events, leased, session)
            case messages.WorkerState():
                self._set_state(message)

    def _arrived(self, message: messages.Arrived, *, late: bool = False) -> None:
        """Place a request. At the limit of its key it is tried again a moment later, once: the end
        of another request may be on its way here.
        """
        proxy = self._proxy
        arrival = message.arrival
        if late and (arrival.request_id not in self._late or self.ended.is_set()):
            return
        self._late.discard(arrival.request_id)
        # The gateway's keys may have been removed meanwhile.
        name = message.key if proxy.guarded else None
        try:
            if name is not None:
                proxy.charge(name)
        except RequestRefused as refusal:
            if refusal.code == RefusalCode.TOO_MANY and not late:
                self._late.add(arrival.request_id)
                asyncio.get_running_loop().call_later(
                    LATE_S, lambda: self._arrived(message, late=True)
                )
                return
            status, headers, body = refusal.answer(message.path)
            self.link.send(
                messages.Refused(arrival.request_id, status, headers, body, refusal.code)
            )
            return
        key = next((key for key in proxy.policy.keys if key.name == name), None)
        plan = RequestPlan(
            None, message.path, b"", key, arrival.priority, arrival.flow, light=message.light
        )
        exchange = proxy.exchanges[arrival.request_id] = RelayedRequest(self, message, plan, proxy)
        proxy.place(exchange, arrival, time.monotonic())

    def _happened(self, event: Event, request_id: str, flag: bool, now: float) -> None:
        """Carry out what a worker says of a request. It has no effect where the request has ended
        here meanwhile.
        """
        self._late.discard(request_id)
        exchange = self._proxy.exchanges.get(request_id)
        if isinstance(exchange, RelayedRequest):
            exchange.happened(event, self._proxy.admission.happened(event, request_id, now, flag))
        elif event is Event.NOT_SENT:
            self._proxy.carry_out(self._proxy.admission.happened(event, request_id, now))

    def _set_state(self, state: messages.WorkerState) -> None:
        self.state = state
        self._silence.heard()
        if self.liveness is Liveness.SILENT:
            self.liveness = Liveness.ANSWERS
        self.refused = Counter(state.refused)
        self.ready.set()
        self._on_state()
        if (settled := self._settling.get(state.settled)) is not None:
            self.events = state.events
            settled.set()
        if not state.heard:
            return
        for replica in self._proxy.admission.replicas():
            if replica.name in state.heard:
                self._proxy.admission.heard(replica.spec, state.heard[replica.name])

    def _lost(self) -> None:
        self.ended.set()
        self.ready.set()
        asyncio.get_running_loop().remove_reader(self._door)
        self._door.close()
        self.state = messages.WorkerState()
        self.passed = 0
        for exchange in list(self._proxy.exchanges.values()):
            if isinstance(exchange, RelayedRequest) and exchange.worker is self:
                exchange.lose()
        for settled in self._settling.values():
            settled.set()


class Workers:
    """Keeps `count` workers running and hands them the connections of `listener`."""

    def __init__(
        self,
        proxy: Proxy,
        server: HttpServer,
        count: int,
        orders: Callable[[], list[Any]],
        silence: SilenceLimits,
    ) -> None:
        """`orders` returns the messages that a new worker gets first."""
        self._silence = silence
        self.running: list[Worker] = []
        self._proxy = proxy
        self._server = server
        self._count = count
        self._orders = orders
        self._acceptor: ConnectionAcceptor | None = None
        self._accepted: socket.socket | None = None  # a connection that no worker could take yet
        self._refused_before = Counter[str]()  # by workers that have ended
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def open(self) -> int:
        return sum(worker.load for worker in self.running)

    @property
    def active(self) -> int:
        """The connections with a request under way, and those that no worker has taken yet."""
        return sum(
            worker.state.active + worker.passed - worker.state.taken for worker in self.running
        )

    @property
    def refused(self) -> Counter[str]:
        """The connections that could not be served, by reason."""
        return sum((worker.refused for worker in self.running), self._refused_before)

    @property
    def silent(self) -> int:
        return sum(worker.liveness is not Liveness.ANSWERS for worker in self.running)

    async def listen(self, listener: socket.socket) -> None:
        """Return once all workers run."""
        ready = [asyncio.Event() for _ in range(self._count)]
        self._tasks = [
            asyncio.create_task(self._keep(number, first_ready))
            for number, first_ready in enumerate(ready)
        ]
        self._tasks.append(asyncio.create_task(self._watch()))
        for first_ready in ready:
            await first_ready.wait()
        listener.listen(BACKLOG)
        self._acceptor = ConnectionAcceptor(listener, self._share_out, self._has_room)
        self._acceptor.resume()

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None

    def order(self, message: Any) -> None:
        """Pass a message of the supervisor's on to all of them."""
        order = messages.Order(ENCODER.encode(message))
        for worker in self.running:
            worker.link.send(order)

    async def settle(self) -> None:
        await asyncio.gather(*(worker.settle() for worker in self.running))

    async def close(self) -> None:
        self._stopping = True
        self.stop_accepting()
        for worker in list(self.running):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await worker.ended.wait()
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while not self._stopping:
            await asyncio.sleep(TICK_S)
            for worker in self.running:
                worker.check_silence(time.monotonic())

    def _new_worker(self) -> Worker:
        return Worker(self._proxy, self._server, self._accept_again, self._silence)

    async def _keep(self, number: int, ready: asyncio.Event) -> None:
        """Start a worker, and another one whenever it dies."""
        failures = 0
        while not self._stopping:
            started = time.monotonic()
            worker = self._new_worker()
            try:
                await worker.start([sys.executable, "-m", "skep.gateway.worker"], number)
                for message in self._orders():
                    worker.link.send(messages.Order(ENCODER.encode(message)))
                self.running.append(worker)
                await worker.ready.wait()
                if not worker.ended.is_set():
                    ready.set()
                await worker.ended.wait()
                self.running.remove(worker)
                self._refused_before += worker.refused
                code = await worker.process.wait()
                if not self._stopping:
                    why = " why=silent" if worker.liveness is Liveness.HANGS else ""
                    print(  # noqa: T201 - the gateway's log
                        f"worker.ended number={number} code={code}{why}",
                        file=sys.stderr,
                        flush=True,
                    )
            except OSError as error:
                print(  # noqa: T201 - the gateway's log
                    f"worker.failed number={number} why={error!r}", file=sys.stderr, flush=True
                )
            if time.monotonic() - started > STABLE_S:
                failures = 0
            failures += 1
            await asyncio.sleep(RESTART_DELAYS_S[min(failures, len(RESTART_DELAYS_S)) - 1])

    def _has_room(self) -> bool:
        return self._accepted is None and any(worker.takes_connections for worker in self.running)

    def _share_out(self, client: socket.socket) -> None:
        """Hand a connection to the worker with the fewest.

        If none takes it now, it waits, and all others with it.
        """
        workers = [worker for worker in self.running if worker.takes_connections]
        workers.sort(key=lambda worker: worker.load)
        if any(worker.hand_over(client) for worker in workers):
            client.close()
            return
        self._accepted = client
        asyncio.get_running_loop().call_later(FULL_S, self._accept_again)

    def _accept_again(self) -> None:
        """Offer the waiting connection again, and accept others: a worker may take them now."""
        client = self._accepted
        if client is not None and any(worker.takes_connections for worker in self.running):
            self._accepted = None
            self._share_out(client)
        if self._acceptor is not None:
            self._acceptor.resume()
