"""The gateway as a process of its own: `python -m skep.gateway.main --listen-fd N --link-fd M`.

The listening socket belongs to the supervisor and outlives this process, so that a crash or an
upgrade refuses no connection. The link brings the replica table and takes questions; when it ends,
the supervisor is gone, and so is this process. Also what it shows of itself: its models, its state
for `skep ps` and `skep top`, its metrics. Decides nothing: that is `admission`'s."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import msgspec
import uvloop

from skep import __version__
from skep.config import gateway_messages as messages
from skep.gateway.admission import Admission
from skep.gateway.batch.routes import BATCH_ROUTES
from skep.gateway.error_format import JSON, RequestRefused
from skep.gateway.health_loop import HealthLoop
from skep.gateway.model_list import anthropic_document, model_document, model_list
from skep.gateway.proxy import Proxy, Route
from skep.gateway.replica_table import GatewayReplica
from skep.gateway.request_accounting import Metrics, RequestAccounting
from skep.gateway.request_log import RequestLog
from skep.gateway.sessions import CONVERSATIONS_KEPT
from skep.wire.json_pipe import JsonPipe
from skep.wire.prometheus import CONTENT_TYPE, Labels
from skep.wire.server import HttpServer
from skep.wire.server_request import ServerRequest

if TYPE_CHECKING:
    from skep.gateway.batch.api import BatchApi
    from skep.gateway.workers import Workers


def landing_page(models: list[dict[str, Any]], url: str, *, guarded: bool) -> str:
    """Return a page that says what is served at this address, and how to call it.

    `models` as `model_document` returns them.
    """
    from html import escape
    from string import Template

    rows = ""
    for model in models:
        facts = (model["skep"].get(name, "?") for name in ("slots", "context", "engine"))
        cells = "".join(f"<td>{escape(str(fact))}</td>" for fact in (model["id"], *facts))
        rows += f"<tr>{cells}</tr>"
    head = "<tr><th>model</th><th>slots</th><th>tokens of context</th><th>engine</th></tr>"
    if guarded:
        served = "It requires an API key."
    elif rows:
        served = "It serves:"
    else:
        served = "It serves no model now."
    page = Template(Path(__file__).with_name("landing.html").read_text(encoding="utf-8"))
    return page.substitute(
        served=served,
        models=f"<table>{head}{rows}</table>" if rows else "",
        url=escape(url),
        model=escape(models[0]["id"] if models else "MODEL"),
        key="YOUR_KEY" if guarded else "none",
        header="-H 'authorization: Bearer YOUR_KEY' " if guarded else "",
    )


def status_of(
    proxy: Proxy, metrics: Metrics, relayed: Counter[str], now: float
) -> messages.GatewayStatus:
    """Return the answer to the supervisor.

    `relayed`: events of streams that workers have under way, by replica.
    """
    admission = proxy.admission
    ended = proxy.accounts.last_ended
    busy = Counter[str]()
    for replica in admission.replicas():
        busy[replica.name] += replica.busy
    # An estimate: answers that ended count with their own tokens, all others with as many for each
    # event that has passed as the ended answers of the same replica had.
    events = defaultdict[str, float](float, metrics.counted_tokens.by("replica"))
    for name, relayed_events in relayed.items():
        events[name] += relayed_events
    for exchange in proxy.exchanges.values():
        if exchange.granted is not None and exchange.leased:
            exchange.count_passed(now)
            events[exchange.granted.replica.name] += exchange.events
    tokens = defaultdict[str, float](float, metrics.output_tokens.by("replica"))
    for name, count in events.items():
        tokens[name] += count * proxy.accounts.tokens_per_event[name].value
    counts = Counter((exchange.model, exchange.under_way) for exchange in proxy.exchanges.values())
    return messages.GatewayStatus(
        queued=admission.queued,
        in_flight=admission.in_flight,
        busy=busy,
        models={
            model: messages.ModelUsage(
                counts[model, True],
                counts[model, False],
                now - ended[model] if model in ended else None,
            )
            for model in admission.models
        },
        queues={model: admission.waiting(model) for model in admission.models},
        replicas=[_figures(replica, now) for replica in admission.table()],
        tokens=tokens,
        ended=metrics.requests.by("outcome"),
    )


def _figures(replica: GatewayReplica, now: float) -> messages.ReplicaFigures:
    spec = replica.spec
    active = replica.active
    busy = replica.busy
    return messages.ReplicaFigures(
        name=spec.name,
        slots=spec.slots,
        active=active,
        releasing=busy - active,
        state=replica.state(now),
        model=spec.model,
        url=spec.url,
        engine=spec.engine,
        simulated=spec.simulated,
    )


def fill_gauges(
    metrics: Metrics, admission: Admission, connections: int, lost: dict[str, int], now: float
) -> None:
    table = {(replica.spec.model, replica.name): replica for replica in admission.table()}
    states = {place: replica.state(now) for place, replica in table.items()}
    busy = defaultdict[Labels, float](float)
    for replica in admission.replicas():  # what has left the table works on for a while
        place = (replica.spec.model, replica.name)
        active = replica.active
        busy[*place, "active"] += active
        busy[*place, "releasing"] += replica.busy - active
    metrics.slots.set_all({place: replica.slots for place, replica in table.items()})
    metrics.busy.set_all(busy)
    metrics.up.set_all({(*place, state): state == "up" for place, state in states.items()})
    metrics.queued.set_all(
        {
            (model, label): count
            for model in admission.models
            for label, count in admission.waiting(model).items()
        }
    )
    metrics.connections.set_all({(): connections})
    metrics.lost_rows.set_all({(why,): count for why, count in lost.items()})
    metrics.build.set_all({(__version__,): 1})


DRAIN_POLL_S = 0.02
CONTINUED_S = 86_400.0  # sessions heard of so lately go on with the numbers of their turns
MOST_SESSIONS = 500  # that are told
QUESTIONS = messages.AskStatus | messages.AskSessions  # that no worker is asked
PROMETHEUS = (b"content-type", CONTENT_TYPE.encode())
HTML = (b"content-type", b"text/html; charset=utf-8")
NO_SCRIPT = (
    b"content-security-policy",
    b"default-src 'none'; style-src 'unsafe-inline'; img-src data:",
)


class Gateway:
    """One gateway: built from the supervisor's first message, told of changes by later ones."""

    def __init__(self, setup: messages.GatewaySetup) -> None:
        self.journal = RequestLog(
            Path(setup.store) if setup.store else None,
            sys.stderr,
            log_path=Path(setup.log) if setup.log else None,
        )
        self.metrics = Metrics()
        admission = Admission(setup.limits)
        self.accounts = RequestAccounting(self.metrics, self.journal.add, admission.knows)
        self.proxy = Proxy(admission, self.accounts, setup)
        self.server = HttpServer(self.proxy.handle, setup.server, self.proxy.check_head)
        self.watch = HealthLoop(self.proxy, setup.watch)
        self.tls = server_tls(setup)
        self.proxy.open_routes |= HEALTH_ROUTES
        for place, open_answer in OPEN_ROUTES.items():
            self.proxy.open_routes[place] = partial(open_answer, self)
        for place, answer in OWN_ROUTES.items():
            self.proxy.routes[place] = partial(answer, self)
        self._answering: set[asyncio.Task[None]] = set()
        # It is loaded with the first request for a file or a batch.
        self.batches: BatchApi | None = None
        self._batch_run: asyncio.Task[None] | None = None
        self._batch_places = setup.batches
        self._leaving = False
        if setup.batches is not None:
            self.proxy.routes.update(dict.fromkeys(BATCH_ROUTES, self._first_batch_request))
        self._began_at = int(time.time())
        self._last_message = ""
        self._refused = Counter[str]()  # connections, as the metric has them
        self._orders: dict[type, messages.ToGateway] = {messages.GatewaySetup: setup}
        self.workers: Workers | None = None  # None: this process relays by itself
        if setup.workers > 1:
            from skep.gateway.workers import Workers

            self.workers = Workers(
                self.proxy, self.server, setup.workers, self._standing_orders, setup.silence
            )

    def _standing_orders(self) -> list[messages.ToGateway]:
        return list(self._orders.values())

    def _first_batch_request(self, request: ServerRequest) -> None:
        self._open_batches()
        asyncio.get_running_loop().call_soon(self.proxy.handle, request)

    def _open_batches(self) -> None:
        from skep.gateway.batch.api import BatchApi

        assert self._batch_places is not None
        self.batches = BatchApi(self.proxy, self._batch_places, self._say)
        # The next gateway has the batches: this one only answers.
        self.batches.runner.leaving = self._leaving
        self.proxy.routes.update(self.batches.routes)
        self._batch_run = asyncio.create_task(self.batches.run())

    def _say(self, text: str) -> None:
        """Write what is in the way of batches to the log: it is met every few seconds, and
        written once.
        """
        if text != self._last_message:
            self._last_message = text
            print(  # noqa: T201 - the gateway's log
                f"batches: {text}", file=sys.stderr, flush=True
            )

    def show_landing_page(self, request: ServerRequest) -> None:
        """Show a person with a browser what is served, and how to call it: no model's name
        without a key.
        """
        proxy = self.proxy
        host = (request.get(b"host") or b"localhost").decode("latin-1")
        if not proxy.guarded:
            proxy.admit(request, request.get(b"origin"))
        served = () if proxy.guarded else proxy.admission.models
        models = [model_document(proxy, model, self._began_at) for model in served]
        body = landing_page(
            models, f"http{'s' if self.tls else ''}://{host}", guarded=proxy.guarded
        )
        request.respond(200, [HTML, NO_SCRIPT], body.encode())

    def list_models(self, request: ServerRequest) -> None:
        anthropic = request.get(b"anthropic-version") is not None
        document = model_list(self.proxy, self._began_at, anthropic=anthropic)
        request.respond(200, [JSON], json.dumps(document).encode())

    def show_model(self, request: ServerRequest) -> None:
        admission = self.proxy.admission
        model = unquote(request.path.partition("models/")[2])
        if not admission.knows(model):
            served = ", ".join(admission.models) or "none"
            raise RequestRefused(
                "model_not_found", f"the model `{model}` is not served here; known: {served}"
            )
        if request.get(b"anthropic-version") is None:
            tell: Callable[[Proxy, str, int], dict[str, Any]] = model_document
        else:
            tell = anthropic_document
        request.respond(200, [JSON], json.dumps(tell(self.proxy, model, self._began_at)).encode())

    async def _settle(self) -> None:
        """Count all requests that have ended."""
        if self.workers is not None:
            await self.workers.settle()
        self.accounts.settle()

    def _answer_in_task(self, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _count_refused(self) -> None:
        """Bring the metric of refused connections up to date."""
        refused = self.server.connections.refused.copy()
        if self.workers is not None:
            refused += self.workers.refused
        for why, count in (refused - self._refused).items():
            self.metrics.refused_connections.add((why,), count)
        self._refused = refused

    def show_metrics(self, request: ServerRequest) -> None:
        self._answer_in_task(self._tell_metrics(request))

    def show_engine_metrics(self, request: ServerRequest) -> None:
        self._answer_in_task(self._tell_engine_metrics(request))

    async def _tell_metrics(self, request: ServerRequest) -> None:
        await self._settle()
        lost = {"buffer full": self.journal.dropped, "store": self.journal.unwritten}
        if self.workers is None:
            connections = len(self.server.open)
        else:
            connections = self.workers.open
        self._count_refused()
        fill_gauges(self.metrics, self.proxy.admission, connections, lost, time.monotonic())
        request.respond(200, [PROMETHEUS], self.metrics.text())

    async def _tell_engine_metrics(self, request: ServerRequest) -> None:
        """Answer with the metrics of the replicas of `?model=`, or of all. What an engine does not
        tell is left out.
        """
        admission = self.proxy.admission
        query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
        model = query.get("model", [""])[0]
        specs = [
            replica.spec
            for replica in admission.table()
            if replica.spec.model == model or not admission.knows(model)
        ]
        texts = await asyncio.gather(*(self.watch.engine_metrics(spec) for spec in specs))
        request.respond(200, [PROMETHEUS], "".join(texts).encode())

    async def serve(self, listener: socket.socket, link: JsonPipe[messages.ToGateway]) -> None:
        self.journal.start()
        if self._batch_places is not None and await asyncio.to_thread(
            os.path.exists, self._batch_places.files
        ):
            self._open_batches()  # what an earlier gateway left is taken up at once
        if self.workers is None:
            await self.server.listen(listener, self.tls)
        else:
            await self.workers.listen(listener)
        self.proxy.on_wanted = lambda model: link.send(messages.ModelWanted(model))
        link.send(messages.Listening(answers_alive=True))
        turns = asyncio.create_task(self._continue_turns())
        clock = asyncio.create_task(self.watch.run())
        orders = asyncio.create_task(self._follow(link))
        try:
            ended, _ = await asyncio.wait({clock, orders}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            clock.cancel()
            orders.cancel()
            turns.cancel()
            if self._batch_run is not None:
                self._batch_run.cancel()
                await asyncio.wait([self._batch_run])
            self.proxy.abort_requests()
            if self.workers is not None:
                self.workers.order(messages.Exit())
                await self.workers.close()
            await self.server.close()
            await self.proxy.close()
            self.accounts.settle()
            self.journal.close()

    async def _continue_turns(self) -> None:
        """Go on with the numbers of turns that the store has of the last day."""
        since = time.time() - CONTINUED_S
        earlier = await asyncio.to_thread(self.journal.last_turns, since, CONVERSATIONS_KEPT)
        self.accounts.sessions.continue_turns(earlier)

    @property
    def _busy(self) -> bool:
        """Whether an answer is under way."""
        relay = self.server if self.workers is None else self.workers
        if relay.active or self.proxy.exchanges:
            return True
        return self.batches is not None and self.batches.runner.busy

    async def _follow(self, link: JsonPipe[messages.ToGateway]) -> None:
        """Carry out the supervisor's messages until it says `exit` or is gone."""
        async with asyncio.TaskGroup() as tasks:
            drains = []
            while True:
                message = await link.receive()
                if message is None or isinstance(message, messages.Exit):
                    break
                if isinstance(message, messages.GatewaySetup | messages.ReplicaTable):
                    self._orders[type(message)] = message
                if isinstance(message, messages.AskAlive):
                    link.send(messages.Alive(message.id))
                    continue
                if self.workers is not None and not isinstance(message, QUESTIONS):
                    # First: what is decided below is about what they then know.
                    self.workers.order(message)
                match message:
                    case messages.ReplicaTable(replicas, models, unloaded):
                        self.proxy.set_replicas(replicas, models, unloaded)
                    case messages.LoadFailed(model, why, retry_after_s):
                        self.proxy.load_failed(model, why, retry_after_s)
                    case messages.GatewaySetup():
                        self.proxy.set_policy(message)
                        self.proxy.carry_out(
                            self.proxy.admission.set_limits(message.limits, time.monotonic())
                        )
                    case messages.AskStatus() | messages.AskSessions():
                        tasks.create_task(self._answer_question(link, message))
                    case messages.AskDrain():
                        drains.append(tasks.create_task(self._drain(link, message)))
            for drain in drains:
                drain.cancel()

    async def _answer_question(
        self,
        link: JsonPipe[messages.ToGateway],
        question: messages.AskStatus | messages.AskSessions,
    ) -> None:
        await self._settle()
        if isinstance(question, messages.AskSessions):
            sessions = self.accounts.sessions.figures(MOST_SESSIONS)
            link.send(messages.SessionsAnswer(question.id, sessions))
        else:
            link.send(messages.StatusAnswer(question.id, self._status()))

    def _status(self) -> messages.GatewayStatus:
        events = Counter[str]()
        if self.workers is not None:
            for worker in self.workers.running:
                events.update(worker.events)
        status = status_of(self.proxy, self.metrics, events, time.monotonic())
        if self.workers is not None:
            status = msgspec.structs.replace(
                status,
                workers=len(self.workers.running),
                silent_workers=self.workers.silent,
            )
        return status

    async def _drain(self, link: JsonPipe[messages.ToGateway], message: messages.AskDrain) -> None:
        admission = self.proxy.admission
        self._leaving = True
        if self.batches is not None:
            self.batches.runner.leave()
        if message.hand_over and self.workers is not None:
            self.workers.stop_accepting()
        elif message.hand_over:
            self.server.stop_accepting()
        else:
            self.proxy.carry_out(admission.close())
        await self._settle()  # from now on workers tell which connections are busy
        try:
            async with asyncio.timeout(message.timeout_s):
                while self._busy:
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            self.proxy.carry_out(admission.close())
        link.send(messages.Drained(message.id, admission.in_flight))


def answer_health(request: ServerRequest) -> None:
    request.respond(200, [JSON], b'{"status":"ok"}')


# What the gateway answers by itself, by method and path; one that ends with a slash is for all
# below it. A line here is all that a new endpoint needs: a relay worker answers for its own health
# and has the deciding process answer for the rest. Those of batches are in `batch.routes`.
Place = tuple[bytes, str]
Answer = Callable[[Gateway, ServerRequest], None]
HEALTH_ROUTES: dict[Place, Route] = {
    (b"GET", "/health"): answer_health,
    (b"GET", "/healthz"): answer_health,
}
OPEN_ROUTES: dict[Place, Answer] = {(b"GET", "/"): Gateway.show_landing_page}  # without a key
OWN_ROUTES: dict[Place, Answer] = {
    (b"GET", "/v1/models"): Gateway.list_models,
    (b"GET", "/v1/models/"): Gateway.show_model,
    (b"GET", "/models"): Gateway.list_models,
    (b"GET", "/models/"): Gateway.show_model,
    (b"GET", "/metrics"): Gateway.show_metrics,
    (b"GET", "/metrics/engines"): Gateway.show_engine_metrics,
}


async def run_gateway(listen_fd: int, link_fd: int) -> None:
    link: JsonPipe[messages.ToGateway] = await JsonPipe.over(
        socket.socket(fileno=link_fd), messages.ToGateway
    )
    setup = await link.receive()
    if isinstance(setup, messages.GatewaySetup):
        gateway = Gateway(setup)
        collect_rarely()
        await gateway.serve(socket.socket(fileno=listen_fd), link)


# Objects: requests leave no circles, and a look at all of those under way takes milliseconds.
COLLECTED_AFTER = 10_000


def collect_rarely() -> None:
    gc.freeze()  # what is there now stays: collections look only at what requests leave behind
    gc.set_threshold(COLLECTED_AFTER)


def server_tls(setup: messages.GatewaySetup) -> ssl.SSLContext | None:
    if setup.tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(setup.tls.certificate, setup.tls.key)
    return context


def run_process(run: Callable[..., Coroutine[Any, Any, None]], *options: str) -> None:
    """Run a process of the gateway until its work is done.

    Its `options` are numbers, and the arguments of `run`.
    """
    parser = argparse.ArgumentParser()
    for option in options:
        parser.add_argument(option, type=int, required=True)
    args = parser.parse_args()
    for name, number in vars(args).items():
        if name.endswith("_fd"):  # a worker that held the link would hide the end of this process
            os.set_inheritable(number, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Sent to a whole group: who started this says when to end.
        signal.signal(number, signal.SIG_IGN)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A connection is a file, and 1024 are few.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    uvloop.run(run(*vars(args).values()))
    os._exit(0)  # nothing here needs an orderly interpreter shutdown, and a stop should be instant


def main() -> None:
    run_process(run_gateway, "--listen-fd", "--link-fd")


if __name__ == "__main__":
    main()
