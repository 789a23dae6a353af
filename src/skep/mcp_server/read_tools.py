"""What this server stands on, and the tool that looks at the endpoint.

Benchmarks are loaded when they are asked for: clients wait for a server to start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from skep.bench.endpoint import api_of, models_of
from skep.errors import EndpointError, SkepError, UserError
from skep.paths import Paths
from skep.store.database import Store, open_store, read_store
from skep.store.records import RunState
from skep.supervisor.control import NotRunning, ask, local_key, socket_of
from skep.swarm.address import URL_VARIABLE
from skep.swarm.records import SwarmRun
from skep.swarm.store import SwarmStore, as_it_stands
from skep.wire.client import WireFailure, fetch_once

Answer = dict[str, Any]  # of a tool: what is unknown is None in it, and left out on the wire
ANSWER_S = 5.0
LOOKED_AT = 30  # stored runs, newest first, for one of a model


class ServerContext(msgspec.Struct, frozen=True):
    paths: Paths
    env: Mapping[str, str]
    url: str | None = None  # None: what SKEP_URL says, or the hive that runs here
    model: str | None = None  # None: the only one that is served
    key_env: str | None = None

    def endpoint_url(self) -> str:
        """Return the URL of the endpoint; raise NotRunning if none is given and no hive runs."""
        return self.url or self.env.get(URL_VARIABLE) or str(self.hive_status()["url"])

    def key(self, url: str) -> str | None:
        """Return the key in the variable that was named; else the one that skep itself has for a
        server on this machine.
        """
        if self.key_env is None:
            return local_key(url, self.env, self.paths)
        if value := self.env.get(self.key_env):
            return value
        raise UserError(
            f"--key-env `{self.key_env}` is not set", hint="set it where `skep mcp` is started"
        )

    def hive_status(self) -> dict[str, Any]:
        """Return what the running supervisor tells; raise NotRunning."""
        return ask(socket_of(self.paths.lock, self.paths.socket), {"op": "status"})

    @contextmanager
    def runs(self) -> Iterator[SwarmStore]:
        """Open the runs of swarms for reading; raise UserError where nothing is stored yet."""
        if not self.paths.store.exists():
            raise UserError("no run is stored here yet", hint="swarm_dispatch makes the first run")
        with open_store(self.paths.store, read_only=True) as store:
            yield SwarmStore(store)

    def run(self, name: str) -> SwarmRun:
        """Return a run as it stands."""
        with self.runs() as runs:
            return as_it_stands(self.paths, runs.run(name))


async def ask_models(url: str, key: str | None) -> dict[str, dict[str, Any]]:
    """Return what is told of each model.

    Raises EndpointError where no OpenAI-compatible server answers.
    """
    origin, base, headers = api_of(url, key)
    try:
        answer = await fetch_once(
            origin, "GET", f"{base}/models", headers=headers, timeout_s=ANSWER_S
        )
    except WireFailure as failure:
        hint = f"is a server running at {url}? `skep up -d` on the shell starts one"
        raise EndpointError(str(failure), hint=hint) from None
    facts_by_model = (
        (name, entry.get("skep"))
        for name, entry in models_of(answer, url, key_given=bool(key)).items()
    )
    return {name: facts if isinstance(facts, dict) else {} for name, facts in facts_by_model}


class ReadTools:
    def __init__(self, place: ServerContext) -> None:
        self._place = place

    async def capacity(self) -> Answer:
        """Capacity of the local endpoint: its models, how many tasks each runs at once (slots),
        how many run and wait now, and the speed by number of agents if it was benchmarked. Call it
        before you decide whether and how finely to split work."""
        place = self._place
        url = await asyncio.to_thread(place.endpoint_url)
        served = await ask_models(url, place.key(url))
        figures = await asyncio.to_thread(self._figures, url)

        def describe(name: str, facts: dict[str, Any]) -> Answer:
            levels, run_id = self._measured(name, simulated=bool(facts.get("simulated")))
            known_facts = {
                key: facts.get(key)
                for key in ("slots", "replicas", "engine", "simulated", "state")
            }
            load = {key: figures.get(name, {}).get(key) for key in ("busy", "queued")}
            return {
                "model": name,
                **known_facts,
                **load,
                "measured": levels or None,
                "measured_run": run_id,
            }

        slots = [facts["slots"] for facts in served.values() if facts.get("slots") is not None]
        models = [await asyncio.to_thread(describe, name, facts) for name, facts in served.items()]
        suggested = (
            "dispatch all tasks in one call: skep finds out how many the endpoint takes at once"
        )
        if slots:
            at_once = f"{max(slots)} tasks run at once"
            suggested = f"{at_once}; dispatch all tasks in one call, the others wait in the queue"
        return {"url": url, "models": models, "suggested": suggested}

    def _figures(self, url: str) -> dict[str, dict[str, Any]]:
        """Return the load of each model, as the gateway of this machine tells it."""
        with contextlib.suppress(NotRunning):
            status = self._place.hive_status()
            if str(status["url"]) == url:
                return dict((status.get("gateway") or {}).get("models", {}))
        return {}

    def _measured(self, model: str, *, simulated: bool) -> tuple[list[Answer], str | None]:
        """Return the levels, and the id, of the newest finished run of that model whose levels are
        numbers of agents, and which is simulated as the model is.
        """
        from skep.bench.stored_run import AGENTS, JUDGED_KINDS, OF_A_TUNING, TIMED_KINDS

        with read_store(self._place.paths.store) as store:
            for run in islice(
                (run for run in store.runs() if run.kind not in OF_A_TUNING), LOOKED_AT
            ):
                fits = (
                    run.model == model
                    and run.state is RunState.DONE
                    and run.kind not in (*TIMED_KINDS, *JUDGED_KINDS, AGENTS)
                )
                if fits and run.simulated == simulated:
                    with contextlib.suppress(SkepError):  # nothing was measured
                        if levels := _levels(store, run.id):
                            return levels, run.id
        return [], None


def _levels(store: Store, run_id: str) -> list[Answer]:
    """Return the levels of a run; `tok_s` is of all agents together."""
    from skep.bench.stored_run import load_run

    return [
        {
            "agents": level.concurrency,
            "tok_s": round(level.effective_tok_s, 1),
            "ttft_ms": round(level.ttft_ms.p50, 1) if level.ttft_ms is not None else None,
            "failed": level.failed,
        }
        for level in load_run(store, run_id)[1].levels
        if level.effective_tok_s is not None
    ]
