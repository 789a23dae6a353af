"""The orchestrator asked for a plan: once, once more with what was wrong, and then the plan is made without it.

Also what has to be known before: how much fits into the endpoint's context, and how long a token is in these texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from skep.wire.client import Pool, WireFailure
from skep.wire.fetch import fetch
from skep.workload.extraction import spoken

UNKNOWN_CONTEXT = 2_048  # tokens; what skep's embedded engine gives a slot unless told
CHUNK_TOKENS = 1_000  # where the context is unknown
MOST_CHUNK_TOKENS = 6_000  # models lose details in more, however large their context is
MOST_ANSWER_TOKENS = 2_048
PROMPT_TOKENS = 350  # of what stands around the material
CHARS_PER_TOKEN = 3.0  # where nobody counts: code and prose have more
SAMPLE_CHARS = 2_500
MARGIN = 0.9  # of what fits: other texts have shorter tokens than the sample
PLAN_TOKENS = 1_024
PATIENCE_S = 60.0  # a plan that was cut after so long is not asked for again
_NOT_TAKEN = (400, 404, 415, 422, 500, 501)


@dataclass(frozen=True, slots=True)
class Planned:
    """`tok_s`: of the plan's own answer, one stream alone; None: it told no tokens."""

    plan: Plan
    tok_s: float | None = None


@dataclass(frozen=True, slots=True)
class Traits:
    """What an endpoint tells of itself beside its name. None: nothing."""

    context: int | None = None  # tokens of one conversation
    tools: bool | None = None  # False: the model's template has no place for them, whatever the server accepts


async def traits_of(endpoint: Endpoint) -> Traits:
    """As skep, llama.cpp (`/props`) or vLLM (`max_model_len`) tell it."""
    pool = Pool(endpoint.origin, connect_timeout_s=5.0)
    headers = dict(endpoint.headers)
    try:
        props = (await fetch(pool, "GET", "/props", headers=headers, timeout_s=5.0)).json()
        models = (await fetch(pool, "GET", f"{endpoint.base}/models", headers=headers, timeout_s=5.0)).json()
    except WireFailure:
        return Traits()
    finally:
        await pool.close()
    if not isinstance(props, dict) or props.get("model_alias", endpoint.model) != endpoint.model:
        props = {}  # of another model behind the same gateway
    data = models.get("data") if isinstance(models, dict) else None
    entries = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    told: list[Any] = [one.get("max_model_len") for one in entries if one.get("id") == endpoint.model]
    told += [_inner(props, "default_generation_settings").get("n_ctx"), endpoint.engine.get("context")]
    tools = _inner(props, "chat_template_caps").get("supports_tools")
    sizes = [int(one) for one in told if _is_size(one)]
    return Traits(min(sizes, default=None), tools if isinstance(tools, bool) else None)


def _inner(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 256 <= value < 10**8


async def chars_per_token(endpoint: Endpoint, sources: Sources, *, timeout_s: float = 60.0) -> float:
    """Counted by the engine on a piece of these very texts; a careful guess where it does not count."""
    share = max(SAMPLE_CHARS // max(len(sources.names), 1), 200)
    sample = "\n".join(sources.text(name)[:share] for name in sources.names[: SAMPLE_CHARS // 200])[:SAMPLE_CHARS]
    if len(sample) < 200:
        return CHARS_PER_TOKEN
    line = Line(endpoint, timeout_s=timeout_s)
    try:
        reply = await line.ask([{"role": "user", "content": sample}], fields={"max_tokens": 1})
    finally:
        await line.close()
    if not reply.prompt_tokens or reply.prompt_tokens * 12 < len(sample):
        return CHARS_PER_TOKEN
    return max(0.5, MARGIN * len(sample) / reply.prompt_tokens)


def sizes_of(
    context: int | None, per_token: float, *, chunk_tokens: int | None, max_tokens: int | None, tools: bool
) -> tuple[Sizes, int]:
    """What fits, and the characters of an agent's whole conversation. UserError where nothing would."""
    known = context or UNKNOWN_CONTEXT
    answer = max_tokens or min(known // 4, MOST_ANSWER_TOKENS)
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
    timeout_s: float = 600.0,
    say: Callable[[str], None] = lambda _text: None,
) -> Planned:
    """By the orchestrator; by rule, and saying why, where it gives none that can be carried out."""
    messages = planner_messages(goal, sources, sizes)
    most = PLAN_TOKENS if context is None else max(min(context // 3, 4 * PLAN_TOKENS), 256)
    asked = sum(len(one["content"]) for one in messages) / sizes.chars_per_token
    if asked + most + LONGEST_QUOTED / sizes.chars_per_token > (context or 2 * UNKNOWN_CONTEXT):
        why = f"a list of {len(sources.names):,} files does not fit into one prompt"
        return Planned(fallback_plan(goal, sources, sizes, tools, why))
    orchestrator = _Orchestrator(Line(endpoint, timeout_s=timeout_s), most)
    why = ""
    try:
        for again in (False, True):
            reply = await orchestrator.ask(messages)
            if reply.error_kind is not None:
                why = f"the orchestrator did not answer: {reply.error}"
                break
            try:
                plan = _read(reply, goal, sources, sizes, tools)
            except UserError as error:
                why = error.message
            else:
                return Planned(plan, orchestrator.tok_s)
            cut = reply.finish_reason == "length" and reply.ended_at - reply.started_at > PATIENCE_S
            if cut:
                why = f"the orchestrator's plan was cut at its limit of {most:,} tokens"
                break
            if not again:
                say(f"the orchestrator's plan cannot be used ({why[:200]}): asked once more")
                messages = planner_messages(goal, sources, sizes, (reply.text, why))
    finally:
        await orchestrator.close()
    return Planned(fallback_plan(goal, sources, sizes, tools, why[:400]), orchestrator.tok_s)


class _Orchestrator:
    """With `response_format` where the endpoint takes it."""

    def __init__(self, line: Line, max_tokens: int) -> None:
        self.tok_s: float | None = None
        self._line = line
        self._fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
        self._formed = True

    async def close(self) -> None:
        await self._line.close()

    async def ask(self, messages: Sequence[dict[str, Any]]) -> Reply:
        formed = {**self._fields, "response_format": response_format(ORCHESTRATOR_SCHEMA)}
        reply = await self._line.ask(messages, fields=formed if self._formed else self._fields)
        if self._formed and reply.status in _NOT_TAKEN:
            self._formed = False
            reply = await self._line.ask(messages, fields=self._fields)
        took = None if reply.first_token_at is None else reply.ended_at - reply.first_token_at
        if reply.output_tokens and took:
            self.tok_s = reply.output_tokens / took
        return reply


def _read(reply: Reply, goal: str, sources: Sources, sizes: Sizes, tools: Sequence[str]) -> Plan:
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
