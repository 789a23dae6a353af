"""Who does which task of an `ask` run: an agent with tools, a plain request, or the orchestrator's own endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skep.bench.endpoint import Endpoint, find_endpoint
from skep.errors import SkepError
from skep.swarm.ask.agents import AgentWork
from skep.swarm.checking.answers import Checking
from skep.swarm.here import key_here
from skep.swarm.line import Line
from skep.swarm.mishaps import REFUSALS
from skep.swarm.orders import Order
from skep.swarm.work import REJECTED, Attempted, ChatWork, Work, WorkMaker
from skep.tasks import SwarmRun, Task

ROOM_CHARS = 6_000  # of an agent's conversation where nothing is known: about 2,000 tokens


def work_maker(run: SwarmRun) -> WorkMaker:
    """For `skep.swarm.running.carry_out`: what the run keeps says all."""
    ask = run.config.get("ask")
    told: Mapping[str, Any] = ask if isinstance(ask, Mapping) else {}

    def make(line: Line, checking: Checking, order: Order) -> Work:
        return AskWork(line, checking, order, told)

    return make


def key_of(url: str, key_env: str | None) -> str | None:
    """The variable asked for; else the gateway's own key, which is sent to this machine only."""
    if key_env is not None:
        return os.environ.get(key_env)
    return key_here(url, os.environ)


class AskWork:
    def __init__(self, line: Line, checking: Checking, order: Order, ask: Mapping[str, Any]) -> None:
        self._chat = ChatWork(line, checking, order)
        self._checking = checking
        self._order = order
        self._orchestrator: Mapping[str, Any] | None = ask.get("orchestrator")
        self._endpoint: Endpoint | None = None
        self._allowed: tuple[str, ...] = tuple(ask.get("tools") or ())
        self._agents = AgentWork(
            line,
            checking,
            order,
            root=Path(str(ask.get("root") or ".")),
            room_chars=int(ask.get("context_chars") or ROOM_CHARS),
            allowed=self._allowed,
            native=ask.get("native_tools"),
        )

    async def attempt(self, task: Task, number: int, complaint: str | None) -> Attempted:
        if task.stage and self._orchestrator is not None:
            return await self._elsewhere(task, number, complaint)
        agent = any(kind in self._allowed for kind in task.tools)
        return await (self._agents if agent else self._chat).attempt(task, number, complaint)

    async def _elsewhere(self, task: Task, number: int, complaint: str | None) -> Attempted:
        """Its faults count against the task's tries: that endpoint's silence says nothing of the run's own."""
        try:
            endpoint = await self._found()
        except SkepError as error:
            return Attempted(error_kind="orchestrator", error=f"the orchestrator: {error.message}")
        line = Line(endpoint, timeout_s=self._order.timeout_s)
        try:
            done = await ChatWork(line, self._checking, self._order).attempt(task, number, complaint)
        finally:
            await line.close()
        if done.error_kind in (None, REJECTED) or done.status in REFUSALS:
            return done
        return Attempted(error_kind="orchestrator", error=f"the orchestrator: {done.error}")

    async def _found(self) -> Endpoint:
        assert self._orchestrator is not None
        if self._endpoint is None:
            told = self._orchestrator
            url = str(told["url"])
            self._endpoint = await find_endpoint(url, told.get("model"), key=key_of(url, told.get("key_env")))
        return self._endpoint
