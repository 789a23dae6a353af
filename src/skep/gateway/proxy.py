"""The proxy: finds out what a request wants, asks admission, and carries out what it decides.

Knows paths, keys and models. The way of one request is in `proxied_request`, the clock in
`health_loop`."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

import msgspec

from skep.config.gateway_messages import GatewaySetup, ReplicaSpec, UnloadedModel
from skep.config.keys import KeyRing, KeySpec, digest_of, given_keys
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Action, Arrival, Forward, Reject, RejectCode
from skep.gateway.body_inspection import (
    LONG_BYTES,
    NOTHING_READ,
    BodySummary,
    NotAnObject,
    fingerprint_of,
    inspect_body,
    model_of_form,
    with_model,
)
from skep.gateway.error_format import (
    LONGEST_NAME_TOLD,
    RequestRefused,
    limit_reached,
    no_such_path,
)
from skep.gateway.prompt_sketch import SKETCHED_BYTES, SketchBudget
from skep.gateway.proxied_request import Exchange
from skep.gateway.request_accounting import RequestAccounting
from skep.gateway.request_policy import (
    RequestPlan,
    batch_plan,
    host_of,
    is_preflight,
    make_plan,
    sort_headers,
)
from skep.gateway.session_names import conversation_in, session_flow
from skep.gateway.unloaded_models import UnloadedModels
from skep.wire.client import Pool
from skep.wire.heads import Headers, parse_url
from skep.wire.server_request import InvalidRequest, ServerRequest

# requests without a slot that a replica gets at once: engines have few threads
LIGHT_PER_SLOT = 2
LIGHT_AT_LEAST = 8
PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-max-age", b"600"),
]
# What a web page may read of an answer besides what browsers show anyway.
EXPOSED = (b"access-control-expose-headers", b"retry-after, x-skep, x-skep-simulated")
MOST_RENAMED = 64  # names that the log tells of
_HEAR_S = 0.001  # one turn of the event loop, with what sockets have to say
TICK_S = 0.25
LOOKED_AFTER_AT_ONCE = 16  # requests, before others have their turn

Route = Callable[[ServerRequest], None]


class Proxy:
    def __init__(
        self, admission: Admission, accounts: RequestAccounting, setup: GatewaySetup
    ) -> None:
        self.admission = admission
        self.accounts = accounts
        self.ring = KeyRing()
        self.exchanges: dict[str, Exchange] = {}
        # Served by the gateway itself, by method and path; one that ends with a slash is for all
        # below it.
        self.routes: dict[tuple[bytes, str], Route] = {}
        self.open_routes: dict[tuple[bytes, str], Route] = {}  # and those that want no key
        # A slot may be in release: do not wait for the next tick.
        self.slots_in_release = asyncio.Event()
        self.unloaded = UnloadedModels()
        self.sketches = SketchBudget()
        self.on_wanted: Callable[[str], None] = lambda _model: None  # a model has to be loaded
        self._pools: dict[str, Pool] = {}  # by replica URL
        self._light: Counter[str] = Counter()  # requests without a slot, by replica URL
        self._prefix = secrets.token_hex(3)
        self._counter = 0
        # A model has several replicas: which of them a conversation goes to is a question.
        self._several = False
        # Served by engines that skep started, or is to start.
        self._own_models: frozenset[str] = frozenset()
        # Replicas get keys of their own: clients' keys are not for them.
        self._keys_of_ours = False
        self._rules = object()  # replaced whenever settings change: cached plans become stale
        # Names that stand for the only model, of which the log has a line.
        self._renamed: set[str] = set()
        # For bodies that take long to look at, one after the other.
        self._looks = ThreadPoolExecutor(1, "look")
        self._looking: set[asyncio.Task[None]] = set()
        self.set_policy(setup)

    # The border

    def handle(self, request: ServerRequest) -> None:
        try:
            plan: RequestPlan | None = request.memo.note
            if plan is None or plan.rules is not self._rules:
                plan = self._plan(request)
                if plan is None:
                    return
                request.memo.note = plan
            elif plan.cross_origin is not None:
                request.extra = plan.cross_origin
            if len(request.body) > LONG_BYTES and not plan.form:
                self._inspect_aside(request, plan)
            else:
                self._submit(request, plan, self._look(request, plan))
        except RequestRefused as refusal:
            request.respond(*self._refusal(request, refusal))

    def check_head(self, request: ServerRequest) -> None:
        """Raise `InvalidRequest` where the client may not send the body that is to come, before it
        takes up memory.
        """
        plan: RequestPlan | None = request.memo.note
        if plan is not None and plan.rules is self._rules:
            return
        try:
            self.admit(request, request.get(b"origin"))
        except RequestRefused as refusal:
            status, headers, body = self._refusal(request, refusal)
            raise InvalidRequest(status, str(refusal), answer=(headers, body)) from None

    def submit_internal(self, request: ServerRequest, owner: str) -> Exchange | None:
        """Submit a request of a batch, with the rights of the key so named; "": of none.

        Return None where it was refused.
        """
        try:
            key = next((key for key in self.policy.keys if key.name == owner), None)
            if key is None and owner and self.guarded:
                raise limit_reached(owner, "invalid_api_key", None)
            if key is not None and key.max_concurrent == 1:
                # That one is for clients: the batch has one beside it.
                if (refusal := self.ring.charge(owner, time.monotonic())) is not None:
                    raise limit_reached(owner, refusal.code.value, refusal.retry_after_s)
                key = None
            plan = batch_plan(self._rules, request.path, key, owner)
            return self._submit(request, plan, self._look(request, plan))
        except RequestRefused as refusal:
            request.respond(*self._refusal(request, refusal))
            return None

    def set_policy(self, setup: GatewaySetup) -> None:
        """Take from the setup what may change while the gateway runs, besides replicas and
        limits.
        """
        keys = setup.keys
        if setup.api_key:
            name = "SKEP_API_KEY"
            if any(key.name == name for key in keys):  # a key of the file may be called so too
                name = "$SKEP_API_KEY"
            keys = (*keys, KeySpec(name, digest_of(setup.api_key)))
        self.policy = msgspec.structs.replace(setup, keys=keys)
        self.timeouts = setup.timeouts
        self.ring.replace(keys)
        self.guarded = bool(keys) or setup.keys_wanted
        self._rules = object()

    def set_replicas(
        self,
        specs: tuple[ReplicaSpec, ...],
        models: tuple[str, ...],
        unloaded: Mapping[str, UnloadedModel],
    ) -> None:
        """Replace the table of replicas.

        `unloaded`: those of the models that are not loaded, with their state.
        """
        self._several = len({spec.model for spec in specs}) < len(specs)
        self._keys_of_ours = any(spec.authorization for spec in specs)
        self._own_models = frozenset(
            {spec.model for spec in specs if spec.own_engine} | {*unloaded}
        )
        self._rules = object()
        self.accounts.sessions.set_replicas(specs, time.monotonic())
        for model in self.unloaded.become(
            unloaded, (spec.model for spec in specs if not spec.draining), models
        ):
            self.accounts.metrics.loads.add((model, "loaded"))
        self.carry_out(self.admission.set_replicas(specs, time.monotonic(), models=models))
        if self.unloaded.states:
            for exchange in list(self.exchanges.values()):
                if exchange.model in self.unloaded.states and not exchange.under_way:
                    self.await_load(exchange, time.monotonic())
        self.slots_in_release.set()

    def load_failed(self, model: str, why: str, retry_after_s: float) -> None:
        """Refuse those who wait for the model, and those who come before it is tried again."""
        self.accounts.metrics.loads.add((model, "failed"))
        self.unloaded.failed(model, why, time.monotonic() + retry_after_s)
        self.carry_out(self.admission.load_failed(model, why, retry_after_s))

    def retire_unused_pools(self) -> None:
        """Close the connections to replicas that are gone, once their last answers have ended."""
        if len(self._pools) > len(self.admission.replicas()):
            used = {replica.spec.url for replica in self.admission.replicas()}
            used |= {
                exchange.granted.replica.url
                for exchange in self.exchanges.values()
                if exchange.granted is not None
            }
            for url in self._pools.keys() - used:
                self._pools.pop(url).retire()

    async def tick(self) -> None:
        """Look after all requests, a few at a time: chunks are not to wait for it. Called a few
        times a second. An error in one request does not stop the clock for the others.
        """
        try:
            self.sketches.refill()
            now = time.monotonic()
            for number, exchange in enumerate(list(self.exchanges.values()), 1):
                if number % LOOKED_AFTER_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    now = time.monotonic()
                if exchange.outcome is not None:
                    continue
                exchange.keep_alive(now)
                if exchange.granted is not None:
                    exchange.count_passed(now)
                    if exchange.heard_at > exchange.granted_at:
                        self.admission.heard(exchange.granted.replica, exchange.heard_at)
                    exchange.check_time(now)
                if exchange.sketch_prompt():
                    await asyncio.sleep(0)
                    now = time.monotonic()
            self.retire_unused_pools()
            for exchange in self.accounts.unsettled():
                if exchange.sketch_prompt():
                    await asyncio.sleep(0)
            while self.accounts.settle(LOOKED_AFTER_AT_ONCE):
                await asyncio.sleep(0)
        except Exception as error:
            print(f"watch.failed why={error!r}", file=sys.stderr)  # noqa: T201 - the gateway's log

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            exchange = self.exchanges[action.request_id]
            if type(action) is Forward:
                if action.attempt > 1:
                    self.accounts.metrics.retries.add((action.replica.model, action.replica.name))
                exchange.forward(action)
            elif type(action) is Reject:
                exchange.reject(action)
            else:
                exchange.abandon_replica()

    def abort_requests(self) -> None:
        """End all requests with this process: every client gets an answer."""
        self.carry_out(self.admission.close())
        for exchange in list(self.exchanges.values()):
            exchange.cut("shutting_down", "the gateway is shutting down")

    async def close(self) -> None:
        self._looks.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools.values():
            await pool.close()

    # For exchanges

    def pool(self, spec: ReplicaSpec) -> Pool:
        pool = self._pools.get(spec.url)
        if pool is None:
            origin, prefix = parse_url(spec.url, name="replica URL")
            pool = self._pools[spec.url] = Pool(
                origin, max_idle=spec.slots + 4, prefix=prefix.encode()
            )
        return pool

    def ended(self, exchange: Exchange, actions: list[Action]) -> None:
        self.leave(exchange, actions)
        self.accounts.ended(exchange, time.monotonic())

    def leave(self, exchange: Exchange, actions: list[Action]) -> None:
        """Forget an exchange that has ended, and carry out what admission makes of that."""
        del self.exchanges[exchange.id]
        key = exchange.plan.key
        if key is not None:
            self.ring.leave(key.name)
        if not exchange.leased and exchange.granted is not None:
            url = exchange.granted.replica.url
            self._light[url] -= 1
            if not self._light[url]:
                del self._light[url]
        if exchange.outcome != "answered":
            self.slots_in_release.set()
        if actions:
            self.carry_out(actions)

    # Inside

    def _plan(self, request: ServerRequest) -> RequestPlan | None:
        """Return the plan of a request; None: the gateway has answered by itself."""
        path = request.path
        method = b"GET" if request.method == b"HEAD" else request.method
        route = self.open_routes.get((method, path))
        if route is not None:
            route(request)
            return None
        headers = sort_headers(request.headers, hide_keys=self.guarded or self._keys_of_ours)
        key = self.admit(request, headers.origin)
        if request.extra is not None and is_preflight(request):
            # Whatever it is, it may.
            asked_for = request.get(b"access-control-request-headers") or b"content-type"
            request.respond(204, [*PREFLIGHT, (b"access-control-allow-headers", asked_for)], b"")
            return None
        route = self.routes.get((method, path)) or self._route_above(method, path)
        if route is not None:
            route(request)
            return None
        if key is not None and len(self.ring) > 1:
            flow = key.name
        else:
            flow = ""
        return make_plan(self._rules, request, headers, key, flow)

    def _route_above(self, method: bytes, path: str) -> Route | None:
        """Return the route that is for all paths below it."""
        for (route_method, place), route in self.routes.items():
            if route_method == method and place.endswith("/") and path.startswith(place):
                return route
        return None

    def admit(self, request: ServerRequest, origin: bytes | None) -> KeySpec | None:
        """Return whose key it is; `request.extra` lets a web page read the answer.

        Raises RequestRefused.
        """
        hosts = self.policy.hosts
        host = request.get(b"host")
        if not self.guarded and hosts and host is not None and host_of(host) not in hosts:
            advice = "call it as localhost or 127.0.0.1, or make a key with `skep key add NAME`"
            message = (
                f"without API keys the gateway does not answer as {host.decode('latin-1')}; "
                f"{advice}"
            )
            raise RequestRefused("host_refused", message)
        if origin is not None:
            page = origin.decode("latin-1")
            origins = self.policy.origins
            if "*" in origins or page in origins:
                request.extra = [
                    (b"access-control-allow-origin", origin),
                    (b"vary", b"origin"),
                    EXPOSED,
                ]
                if is_preflight(request):
                    return None
            elif not self.guarded or request.method == b"OPTIONS":
                # Otherwise the key decides, and no page reads the answer.
                allowed = "`cors_origins` under [gateway] in skep.toml names those that may"
                raise RequestRefused(
                    "origin_refused", f"web pages of {page} may not call this gateway; {allowed}"
                )
        return self.key_of(request)

    def _inspect_aside(self, request: ServerRequest, plan: RequestPlan) -> None:
        arrived_at = time.monotonic()
        look = asyncio.create_task(self._inspect_in_thread(request, plan))
        self._looking.add(look)
        look.add_done_callback(self._looking.discard)

        def client_gone() -> None:
            look.cancel()
            self.accounts.left_early(self._new_id(), request, plan.priority.label, arrived_at)

        request.on_gone = client_gone

    async def _inspect_in_thread(self, request: ServerRequest, plan: RequestPlan) -> None:
        """Inspect a body beside the event loop. Cancelled if the client leaves, which is heard
        before an engine is asked.
        """
        try:
            body_summary = await asyncio.get_running_loop().run_in_executor(
                self._looks, self._look, request, plan
            )
            await asyncio.sleep(_HEAR_S)
            if plan.rules is self._rules:
                self._submit(request, plan, body_summary)
            else:
                self.handle(request)
        except RequestRefused as refusal:
            request.respond(*self._refusal(request, refusal))

    def _submit(
        self, request: ServerRequest, plan: RequestPlan, body_summary: BodySummary
    ) -> Exchange:
        if (
            not plan.for_clients
            and self._own_models
            and self._own_models.issuperset(self.admission.models)
        ):
            raise no_such_path(plan.path)
        model = plan.model or body_summary.model
        body = request.body
        if model is None or not self.admission.knows(model):
            model, body = self._model(body_summary, plan, request)
        if not plan.for_clients and model in self._own_models:
            raise no_such_path(plan.path)
        if plan.key is not None:
            self.charge(plan.key.name)
        request_id = self._new_id()
        exchange = Exchange(request_id, request, plan, model, body, self)
        exchange.body_summary = body_summary
        self.exchanges[request_id] = exchange
        arrival = self._arrival(exchange, plan, body_summary)
        exchange.flow = arrival.flow
        self.place(exchange, arrival, exchange.arrived_at)
        return exchange

    def _arrival(
        self, exchange: Exchange, plan: RequestPlan, body_summary: BodySummary
    ) -> Arrival:
        body = exchange.request.body
        if plan.session is not None:
            session: int | None = plan.session
        else:
            session = body_summary.session
        patience_s = plan.patience_s
        if patience_s is not None and exchange.comment_after_s is not None:
            patience_s = None  # with comments it holds out
        return Arrival(
            exchange.id,
            exchange.model,
            plan.priority,
            plan.flow if plan.flow or session is None else session_flow(session),
            conversation_in(session, plan.agent, body_summary.conversation),
            exchange.request_bytes,
            plan.max_wait_s,
            session=session,
            fingerprint=fingerprint_of(body) if body else 0,
            patience_s=patience_s,
        )

    def charge(self, key: str) -> None:
        """Count a request among those of its key.

        Raises RequestRefused where it is gone or has reached its limit.
        """
        if (refusal := self.ring.enter(key, time.monotonic())) is not None:
            raise limit_reached(key, refusal.code.value, refusal.retry_after_s)

    def place(self, exchange: Exchange, arrival: Arrival, now: float) -> None:
        """Hand a new exchange to admission, or to a replica at once where it takes no slot."""
        is_unloaded = self.unloaded.states and exchange.model in self.unloaded.states
        if is_unloaded and self._is_refused(exchange, now):
            return
        if exchange.plan.light and not is_unloaded:
            self._submit_without_slot(exchange, now)
            return
        may_wait = 1 if is_unloaded else 0  # somebody has to, or it is never loaded
        self.carry_out(self.admission.arrive(arrival, now, may_wait=may_wait))
        if is_unloaded and not exchange.under_way:
            self.await_load(exchange, now)

    def _is_refused(self, exchange: Exchange, now: float) -> bool:
        """Return whether a request for a model that is not loaded was refused."""
        failure = self.unloaded.failure(exchange.model, now)
        if failure is not None:
            exchange.leased = False
            why, retry_after_s = failure
            exchange.reject(Reject(exchange.id, RejectCode.LOAD_FAILED, retry_after_s, why))
        elif not exchange.loads_model:
            exchange.leased = False
            exchange.refuse(
                "replica_lost", f"`{exchange.model}` is not loaded; a completion request loads it"
            )
        return exchange.outcome is not None

    def await_load(self, exchange: Exchange, now: float) -> None:
        if self.unloaded.should_request_load(exchange.model):
            self.on_wanted(exchange.model)
        if exchange.outcome is None and (exchange.is_commenting or exchange.hears_of_loading):
            exchange.send_keepalive(now)

    def _submit_without_slot(self, exchange: Exchange, now: float) -> None:
        exchange.leased = False
        if self.admission.closed:
            exchange.refuse("shutting_down", "the endpoint is shutting down")
            return
        replica = self.admission.anywhere(exchange.model, now)
        if (
            replica is not None
            and self._light[replica.url] >= LIGHT_PER_SLOT * replica.slots + LIGHT_AT_LEAST
        ):
            exchange.refuse(
                "queue_full", "too many requests of this kind are in progress; try again in 1 s"
            )
        elif replica is not None:
            self._light[replica.url] += 1
            exchange.forward(Forward(exchange.id, replica, 0.0, 1))
        elif self.admission.knows(exchange.model):
            exchange.refuse("replica_lost", f"no replica of `{exchange.model}` can be reached now")
        else:
            exchange.reject(Reject(exchange.id, RejectCode.UNKNOWN_MODEL))

    def _look(self, request: ServerRequest, plan: RequestPlan) -> BodySummary:
        if not request.body:
            return NOTHING_READ
        if plan.form:
            return BodySummary(model_of_form(request.body))
        try:
            return inspect_body(
                request.body,
                conversation=self._several or self._is_told_by_look(request, plan),
                session=plan.session is None,
            )
        except NotAnObject as error:
            if not plan.may_be_other:
                raise RequestRefused(
                    "bad_request", f"the body is not a JSON object with a `model`: {error}"
                ) from None
            return NOTHING_READ

    def _is_told_by_look(self, request: ServerRequest, plan: RequestPlan) -> bool:
        """Return whether the look at the body has to tell which conversation of its session a
        request is: the later one at its prompt is for bodies of some size.
        """
        length = len(request.body)
        return plan.session is not None and not SKETCHED_BYTES <= length <= LONG_BYTES

    def _model(
        self, body_summary: BodySummary, plan: RequestPlan, request: ServerRequest
    ) -> tuple[str, bytes]:
        """Return the model that serves a request, and the body for it, in which an alias is
        replaced by the name that the engine knows.
        """
        named = plan.model or body_summary.model
        if named is None:
            models = self.admission.models
            if len(models) == 1:
                return models[0], request.body
            if request.body:
                where = "name a `model` in the body"
            else:
                where = "name one with the header x-skep-model"
            raise RequestRefused(
                "bad_request", f"several models are served here: {', '.join(models)}; {where}"
            )
        if self.admission.knows(named):
            return named, request.body
        model = self._meant_by(named)
        if model is None:
            return named, request.body
        if body_summary.model == named:
            changed = with_model(request.body, named, model, body_summary.name_at)
            if changed is not None:
                return model, changed
        return model, request.body

    def _meant_by(self, name: str) -> str | None:
        """Return the model that a name stands for that is no model's; None: it is not known."""
        for pattern, model in self.policy.aliases.items():
            if fnmatchcase(name, pattern):
                return model
        models = self.admission.models
        if self.policy.strict_models or len(models) != 1:
            return None
        if name not in self._renamed and len(self._renamed) < MOST_RENAMED:
            self._renamed.add(name)
            quoted_name = json.dumps(name[:LONGEST_NAME_TOLD])
            print(  # noqa: T201 - the gateway's log
                (f"model.renamed asked={quoted_name} means={models[0]!r}"),
                file=sys.stderr,
                flush=True,
            )
        return models[0]

    def key_of(self, request: ServerRequest) -> KeySpec | None:
        """Return the key that a request comes with; None: no keys are wanted."""
        if not self.guarded:
            return None
        for given in given_keys(request.headers):
            if (key := self.ring.find(given)) is not None:
                return key
        message = (
            "this endpoint requires an API key, sent as `Authorization: Bearer KEY` or `x-api-key`"
        )
        raise RequestRefused("invalid_api_key", message)

    def _refusal(
        self, request: ServerRequest, refusal: RequestRefused
    ) -> tuple[int, Headers, bytes]:
        """Return the answer, and account for the request."""
        request_id = self._new_id()
        status, headers, body = refusal.answer(request.path)
        self.accounts.refused(request_id, request, status, refusal.code)
        return status, [*headers, (b"x-skep", b"id=" + request_id.encode())], body

    def _new_id(self) -> str:
        self._counter += 1
        return f"{self._prefix}-{self._counter}"
