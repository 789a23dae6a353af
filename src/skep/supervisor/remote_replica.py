"""A replica that skep did not start: probed over HTTP until it answers, then left to the gateway's
own health checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from skep.catalog.engines import engine_kinds
from skep.engines.base import Launch, key_headers
from skep.errors import UserError
from skep.supervisor.lifecycle import Life, ReplicaState
from skep.supervisor.replica import ReplicaMember, UpstreamInfo
from skep.units import one_line
from skep.wire.client import HttpResponse, Pool, WireFailure, fetch
from skep.wire.engine_state import LARGEST_STATE_BYTES, fetch_state, parse_state
from skep.wire.heads import parse_url
from skep.wire.prometheus import count_busy

T = TypeVar("T")

# The slots of each replica of another gateway, in its /metrics.
_SLOTS_OF_GATEWAY = re.compile(r'^skep_slots\{model="([^"\n]*+)".*\} (\d{1,9})', re.MULTILINE)
PROBE_EVERY_S = 1.0
MOST_SLOTS = 256  # vLLM's own default
LARGEST_SLOTS = 65_536  # as --slots takes them: a server that says more is not believed
PROBE_TIMEOUT_S = 5.0
SHOWN_MODELS = 8
SHOWN_NAME = 80  # characters of a name that a server gives
LONGEST_NAME = 1024  # characters of a model's name: the gateway takes no longer one from a client
# In a document: while it is parsed, no other thread gets a turn.
MOST_VALUES = 100_000


class UpstreamUnavailable(Exception):
    """The server does not answer as an OpenAI server does; the message says how."""


class UpstreamReplica(ReplicaMember):
    """One server that skep did not start."""

    kind = "upstream"

    def __init__(self, launch: Launch, changed: Callable[[], None]) -> None:
        self.launch = launch
        self.engine: UpstreamInfo = UpstreamInfo(health_path=launch.health_path or "/health")
        self.life = Life(launch.url)
        self._probed = False
        self.changed = changed
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def model(self) -> str:
        """The name of the model; empty until the settings or the server give it."""
        return self.launch.model or self.engine.model

    @property
    def settled(self) -> bool:
        """Whether it was probed once, with whatever result."""
        return self._probed

    def stop(self) -> None:
        self._stopping = True
        if self._running is not None:
            self._running.cancel()

    async def restart(self) -> None:
        self.life.restarts += 1
        self.become(ReplicaState.STARTING, None)
        self._wake.set()

    async def run(self) -> None:
        """Run until stopped: probe every second until it answers, then wait for `restart`."""
        self._running = asyncio.current_task()
        self.life.state = ReplicaState.STARTING
        try:
            while not self._stopping:
                await self._look()
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self.become(ReplicaState.STOPPED, self.life.why)

    async def _look(self) -> None:
        """Probe it unless it is ready, then wait until the next look is due."""
        self._wake.clear()
        if self.life.state is ReplicaState.STARTING:
            try:
                self.engine = await probe_upstream(self.launch)
                state = ReplicaState.READY
                why = self.engine.note
            except UpstreamUnavailable as error:
                state = ReplicaState.STARTING
                why = str(error)
            if not self._probed or (state, why) != (self.life.state, self.life.why):
                self._probed = True
                self.become(state, why)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self.life.serving else PROBE_EVERY_S):
                await self._wake.wait()


async def probe_upstream(launch: Launch) -> UpstreamInfo:
    """Return which model a server serves, what engine it is, and how it reports busy slots.

    Raise UpstreamUnavailable.
    """
    origin, prefix = parse_url(launch.url or "", name="upstream")
    pool = Pool(origin, connect_timeout_s=PROBE_TIMEOUT_S, prefix=prefix.encode())
    try:
        headers = key_headers(launch)
        answer = await _fetch_models(pool, headers)
        listed = await _models(answer, given=bool(launch.model))
        model, note = _choose(launch.model, sorted(listed))
        name, confirms = await _engine(pool, headers)
    except WireFailure as failure:
        raise UpstreamUnavailable(str(failure)) from None
    finally:
        await pool.close()
    entry = listed.get(model, {})
    return UpstreamInfo(
        model=model,
        name=name,
        confirms=confirms,
        release_bound_s=30.0 if confirms else 5.0,
        health_path=launch.health_path or "/health",
        simulated=_is_simulated(entry),
        note=note,
    )


def _is_simulated(entry: Mapping[str, Any]) -> bool:
    """Return whether a model is listed as simulated, as another skep and the fake engine do."""
    if entry.get("owned_by") == "skep-fake":
        return True
    facts = entry.get("skep")
    return isinstance(facts, dict) and bool(facts.get("simulated"))


async def _fetch_models(pool: Pool, headers: Mapping[str, str]) -> HttpResponse:
    return await fetch(
        pool,
        "GET",
        "/v1/models",
        headers=dict(headers),
        timeout_s=PROBE_TIMEOUT_S,
        most_bytes=LARGEST_STATE_BYTES,
    )


async def _models(answer: HttpResponse, *, given: bool) -> dict[str, dict[str, Any]]:
    if answer.status in (401, 403):
        reason = f"it requires an API key (HTTP {answer.status} from /v1/models)"
        raise UpstreamUnavailable(f"{reason}: name its variable with `key_env`")
    if answer.status in (404, 405, 501) and given:
        return {}  # it has no list; the name was given
    if answer.status != 200:
        raise UpstreamUnavailable(f"HTTP {answer.status} from /v1/models")
    listed = await parse_state(answer, _listed_models)
    if listed is None:
        raise UpstreamUnavailable("no list of models from /v1/models")
    return listed


def _listed_models(text: str) -> dict[str, dict[str, Any]] | None:
    """Return what a list of models says of each, by its name; None where it is no such list."""
    entries = _object(text).get("data")
    if not isinstance(entries, list):
        return None
    objects = [entry for entry in entries if isinstance(entry, dict)]
    return {entry["id"]: entry for entry in objects if _is_name(entry.get("id"))}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object; empty where the text is none, or one of too many values."""
    if sum(text.count(mark) for mark in "{[,") > MOST_VALUES:
        return {}
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    if isinstance(document, dict):
        return document
    return {}


def _choose(given: str, listed: list[str]) -> tuple[str, str | None]:
    """Return the model, and a note where the server does not list it.

    `given` is the model of the settings; empty: the only one that is listed.
    """
    names = ", ".join(one_line(name, SHOWN_NAME) for name in listed[:SHOWN_MODELS])
    if len(listed) > SHOWN_MODELS:
        names += ", ..."
    if given and listed and given not in listed:
        return given, f"it does not list `{given}`; it lists {names}"
    if given:
        return given, None
    if not listed:
        raise UpstreamUnavailable("it serves no model")
    if len(listed) > 1:
        raise UpstreamUnavailable(
            f"it serves {len(listed)} models ({names}): choose one with `model`"
        )
    return listed[0], None


async def _engine(pool: Pool, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the engine's name, and how it reports busy slots."""
    if await _ask(pool, "/slots", headers, count_busy) is not None:
        properties = await _ask(pool, "/props", headers, _object)
        return _versioned("llama.cpp", properties, "build_info"), "slots"
    name = await _ask(pool, "/metrics", headers, _engine_of_metrics)
    if name is None:
        return "remote", ""
    return _versioned(name, await _ask(pool, "/version", headers, _object), "version"), "metrics"


def _engine_of_metrics(text: str) -> str | None:
    return next(
        (
            name
            for name, kind in engine_kinds().items()
            if kind.has_pool and kind.running_metric and kind.running_metric in text
        ),
        None,
    )


async def ask_slots(
    url: str, key_env: str | None = None, model: str | None = None
) -> tuple[int, str] | None:
    """Return how many sequences a server decodes at a time, and where it says so; None: it does
    not say. Raise UserError where it does not answer.
    """
    origin, prefix = parse_url(url, name="upstream")
    pool = Pool(
        origin, connect_timeout_s=PROBE_TIMEOUT_S, prefix=prefix.removesuffix("/v1").encode()
    )
    key = os.environ.get(key_env, "") if key_env else ""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        await _fetch_models(pool, headers)  # raises where nobody answers
        for path, name in (
            ("/props", "total_slots"),
            ("/get_server_info", "max_running_requests"),
        ):
            document = await _ask(pool, path, headers, _object) or {}
            count = document.get(name)
            if isinstance(count, int) and 1 <= count <= LARGEST_SLOTS:
                return count, f"{path} of {url}"
        text = await _ask(pool, "/metrics", headers, str) or ""
    except WireFailure as failure:
        hint = "start it first, or give their number with --slots"
        raise UserError(
            f"{url} does not answer ({failure}), so its slots are not known", hint=hint
        ) from None
    finally:
        await pool.close()
    total = _slots_of_gateway(text, model)
    if 1 <= total <= LARGEST_SLOTS:
        return total, f"/metrics of {url}"
    return _slots_of_vllm(text)


def _slots_of_gateway(metrics: str, model: str | None) -> int:
    """Return the slots of a model of another gateway, or of its only model; 0: unknown."""
    rows = _SLOTS_OF_GATEWAY.findall(metrics)
    if model is None and len({name for name, _ in rows}) != 1:
        return 0
    return sum(int(count) for name, count in rows if model in (None, name))


def _slots_of_vllm(metrics: str) -> tuple[int, str] | None:
    """Return as many slots as vLLM's KV cache holds tasks of an agent: it does not say how many
    sequences it decodes at a time.
    """
    from skep.planner.candidates import AGENT_INPUT_TOKENS, AGENT_OUTPUT_TOKENS

    config = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    if config is None:
        return None
    sizes = dict(re.findall(r'(num_gpu_blocks|block_size)="(\d{1,15})"', config[1]))
    tokens = int(sizes.get("num_gpu_blocks", 0)) * int(sizes.get("block_size", 0))
    if not tokens:
        return None
    slots = max(1, min(MOST_SLOTS, tokens // (AGENT_INPUT_TOKENS + AGENT_OUTPUT_TOKENS)))
    return slots, f"the {tokens:,} tokens of its KV cache"


def _versioned(name: str, document: dict[str, Any] | None, field: str) -> str:
    version = document.get(field) if document is not None else None
    if isinstance(version, str):
        return f"{name} {one_line(version, SHOWN_NAME)}"
    return name


async def _ask(
    pool: Pool, path: str, headers: Mapping[str, str], parse: Callable[[str], T]
) -> T | None:
    """Return what `parse` makes of the answer; None where there is none, or its status is not 200.

    Some servers close the connection on an unknown path.
    """
    try:
        return await fetch_state(pool, path, parse, headers=headers, timeout_s=PROBE_TIMEOUT_S)
    except WireFailure as failure:
        if failure.kind == "timeout":
            raise
        return None
