"""The orchestrator asked for a plan: once, once more with what was wrong, and then the plan is made without it.

All of it within a time: a plan is worth less than the work it is for. Also how much fits into a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.errors import UserError
from skep.swarm.ask.expand import expand, fallback_plan
from skep.swarm.ask.files import Sources
from skep.swarm.ask.plan import ORCHESTRATOR_SCHEMA, Plan, Sizes, sketch_of
from skep.swarm.ask.prompts import LONGEST_QUOTED, planner_messages
from skep.swarm.checking.said_json import values_in, why_none
from skep.swarm.line import Line, Reply
from skep.swarm.work import response_format
from skep.units import format_seconds
from skep.workload.extraction import spoken

UNKNOWN_CONTEXT = 2_048  # tokens; what skep's embedded engine gives a slot unless told
CHUNK_TOKENS = 1_000  # where the context is unknown
UNKNOWN_ANSWER = 512
LEAST_ANSWER = 256  # tokens: two paragraphs; of a small context an answer takes no more than an eighth
MOST_CHUNK_TOKENS = 6_000  # models lose details in more, however large their context is
MOST_ANSWER_TOKENS = 2_048
PROMPT_TOKENS = 350  # of what stands around the material
PLAN_TOKENS, TOKENS_A_FILE = 1_024, 48  # of a plan, and more for every file that it may name
MOST_PLAN_TOKENS = 4_096
PLAN_S = 60.0
TICK_S = 0.5
_NOT_TAKEN = (400, 404, 415, 422, 500, 501)


@dataclass(frozen=True, slots=True)
class Planned:
    """`tok_s`: of the plan's own answer, one stream alone; None: it told no tokens."""

    plan: Plan
    tok_s: float | None = None


def sizes_of(
    context: int | None, per_token: float, *, chunk_tokens: int | None, max_tokens: int | None, tools: bool
) -> tuple[Sizes, int]:
    """What fits, and the characters of an agent's whole conversation. UserError where nothing would."""
    known = context or UNKNOWN_CONTEXT
    own = UNKNOWN_ANSWER if context is None else min(max(context // 8, LEAST_ANSWER), context // 4)
    answer = max_tokens or min(own, MOST_ANSWER_TOKENS)
    room = known - answer - PROMPT_TOKENS
    if context is None and chunk_tokens is not None:  # who asks for larger pieces knows of a larger context
        room = max(room, chunk_tokens)
        known = room + answer + PROMPT_TOKENS
    if room < 100:
        hint = "a smaller --max-tokens leaves more"
        raise UserError(f"a context of {known:,} tokens has no room beside answers of {answer:,}", hint=hint)
    chunk = chunk_tokens or min(room // 2 if tools else room, MOST_CHUNK_TOKENS, CHUNK_TOKENS if not context else room)
    if chunk > room:
        hint = f"at most {room:,}, or a smaller --max-tokens"
        raise UserError(f"--chunk-tokens {chunk:,} does not fit into a context of {known:,} tokens", hint=hint)
    sizes = Sizes(int(chunk * per_token), int(room * per_token), answer, round(per_token, 3))
    return sizes, int((known - answer) * per_token)


async def make_plan(
    goal: str,
    sources: Sources,
    sizes: Sizes,
    endpoint: Endpoint,
    *,
    context: int | None,
    tools: Sequence[str] = (),
    merges: bool = True,
    timeout_s: float = PLAN_S,
    say: Callable[[str], None] = lambda _text: None,
    watch: Callable[[int], None] = lambda _tokens: None,
) -> Planned:
    """By the orchestrator; by rule, and saying why, where it gives none that can be carried out within the time.

    `merges`: of a plan by rule, whether a model puts the answers together. `watch` hears every half second how many
    tokens have come.
    """
    most = plan_tokens(context, len(sources.names))
    asked = sum(len(one["content"]) for one in planner_messages(goal, sources, sizes)) / sizes.chars_per_token
    if asked + most + LONGEST_QUOTED / sizes.chars_per_token > (context or 2 * UNKNOWN_CONTEXT):
        why = f"a list of {len(sources.names):,} files does not fit into one prompt"
        return Planned(fallback_plan(goal, sources, sizes, tools, why, merges=merges))
    line = Line(endpoint, timeout_s=timeout_s)
    orchestrator = _Orchestrator(line, most, timeout_s, say)
    try:
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(_tick(line, watch))
            read = partial(_read, goal=goal, sources=sources, sizes=sizes, tools=tools)
            plan = await orchestrator.plan(partial(planner_messages, goal, sources, sizes), read)
            ticking.cancel()
    finally:
        await line.close()
    if plan is None:
        plan = fallback_plan(goal, sources, sizes, tools, orchestrator.why[:400], merges=merges)
    return Planned(plan, orchestrator.tok_s)


def plan_tokens(context: int | None, files: int) -> int:
    """How long a plan may be. A model that thinks first needs much of it for that."""
    wanted = min(PLAN_TOKENS + TOKENS_A_FILE * files, MOST_PLAN_TOKENS)
    return wanted if context is None else max(min(context // 3, wanted), 256)


async def _tick(line: Line, watch: Callable[[int], None]) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        watch(line.total)


class _Orchestrator:
    """Asks, with `response_format` where the endpoint takes it. `why`: what was wrong with the last answer."""

    def __init__(self, line: Line, max_tokens: int, timeout_s: float, say: Callable[[str], None]) -> None:
        self.tok_s: float | None = None
        self.why = ""
        self._line = line
        self._say = say
        self._fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
        self._formed = True
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s

    async def plan(
        self, messages: Callable[[tuple[str, str] | None], list[dict[str, Any]]], read: Callable[[Reply], Plan]
    ) -> Plan | None:
        """None: neither the first answer nor the corrected one can be carried out, or the time is up."""
        reply = await self._ask(messages(None))
        plan = self._taken(reply, read)
        if plan is not None or reply.error_kind is not None:
            return plan
        if reply.ended_at - reply.started_at > self._until - time.monotonic():
            self.why += f"; there was no time within {format_seconds(self._timeout_s)} to ask again"
            return None
        self._say(f"the orchestrator's plan cannot be used ({self.why[:200]}): asked once more")
        return self._taken(await self._ask(messages((reply.text, self.why))), read)

    def _taken(self, reply: Reply, read: Callable[[Reply], Plan]) -> Plan | None:
        if reply.error_kind == "timeout":
            self.why = f"the orchestrator gave no plan within {format_seconds(self._timeout_s)}"
            return None
        if reply.error_kind is not None:
            self.why = f"the orchestrator did not answer: {reply.error}"
            return None
        try:
            return read(reply)
        except UserError as error:
            self.why = error.message
            return None

    async def _ask(self, messages: Sequence[dict[str, Any]]) -> Reply:
        formed = {**self._fields, "response_format": response_format(ORCHESTRATOR_SCHEMA)}
        reply = await self._send(messages, formed if self._formed else self._fields)
        if self._formed and reply.status in _NOT_TAKEN:
            self._formed = False
            reply = await self._send(messages, self._fields)
        took = None if reply.first_token_at is None else reply.ended_at - reply.first_token_at
        if reply.output_tokens and took:
            self.tok_s = reply.output_tokens / took
        return reply

    async def _send(self, messages: Sequence[dict[str, Any]], fields: dict[str, Any]) -> Reply:
        left_s = max(self._until - time.monotonic(), 0.01)
        return await self._line.ask(messages, fields=fields, timeout_s=left_s)


def _read(reply: Reply, *, goal: str, sources: Sources, sizes: Sizes, tools: Sequence[str]) -> Plan:
    """The first plan in its answer that can be carried out; UserError with what is wrong with the last."""
    text = spoken(reply.text, None).text
    if reply.finish_reason == "length":
        raise UserError("it was cut at its limit of tokens: plan fewer tasks, in fewer words")
    wrong = UserError(why_none(text))
    for value in values_in(text):
        try:
            return expand(sketch_of(value, lenient=True), goal, sources, sizes, tools, planned=True)
        except UserError as error:
            wrong = error
    raise wrong
