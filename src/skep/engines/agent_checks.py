"""Two checks of what agents need: that a tool call arrives as one, and a prompt is read only once.

Both are requests of any OpenAI client, so that they work with every server; what engines tell
beside their answers (`/props`, `/metrics`, `timings`) is used where it is there. A check never
raises: what went wrong is its result.
Knows nothing of replicas, deployments and how results are shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from skep.engines.adapter import is_hybrid, source_of
from skep.engines.base import Launch, key_headers
from skep.units import one_line
from skep.wire.client import HttpResponse, Pool, WireFailure, fetch
from skep.wire.engine_state import fetch_state
from skep.wire.heads import parse_url
from skep.wire.prometheus import parse_metrics

DEADLINE_S = 60.0  # for both
CALL_TOKENS = 96
THINKING_TOKENS = 1024  # for a model that thinks although it was asked not to
USUAL_PROMPT_TOKENS = 600
LONG_PROMPT_TOKENS = 4500  # with linear attention an engine's blocks hold up to 2,096 tokens
CPU_PROMPT_TOKENS = 64
LEAST_PROMPT_TOKENS = 64
GOOD_SHARE = 0.5  # of a prompt, cached when it comes the second time
CONNECT_S = 5.0
TOKENS_A_LINE = 16
SHOWN_ERROR = 160  # characters of what a server says
LARGEST_ANSWER_BYTES = 1 << 20  # to a question for 1,024 tokens at most
# JSON values in one answer: they are decoded in one go, and the event loop waits meanwhile.
MOST_VALUES = 20_000

_BY_TEMPLATE = ("llama.cpp", "llamacpp", "embedded", "xllamacpp")
_COUNTERS = (  # of hits and of looked-up tokens, by engine
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file and return its text.",
        "parameters": {
            "type": "object",
            # One possible value: a model of any kind comes to the end of the call.
            "properties": {"path": {"type": "string", "enum": ["notes.txt"]}},
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
_WITHOUT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
_ANOTHER_SERVER = "is this the base URL of an OpenAI-compatible server"
_ANOTHER_MODEL = "serve a model that was trained to call tools, such as qwen3-8b"

State = Literal["ok", "warning", "unknown"]
T = TypeVar("T")


class AgentCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check. `text` is one line: "tool calls: ok"."""

    name: str  # "tool_calls" or "prefix_cache"
    state: State
    text: str
    hint: str | None = None  # what to do
    hit_share: float | None = None  # of the prompt's tokens, at its second time
    answered: bool = True  # False: there was no answer that could be judged


class CheckedEndpoint(msgspec.Struct, frozen=True):
    """Where the requests go, and what is known of who answers."""

    url: str
    model: str
    engine: str = ""  # its name, perhaps with a version; empty: not known
    headers: Mapping[str, str] = {}
    context_tokens: int | None = None
    is_hybrid: bool | None = None  # linear attention beside full attention; None: not known
    caches_prefixes: bool = True  # False: its prefix cache is switched off

    @classmethod
    def of(cls, launch: Launch, url: str) -> CheckedEndpoint:
        """Return the endpoint of a replica that answers at this URL."""
        return cls(
            url=url,
            model=launch.model,
            engine=launch.engine,
            headers=key_headers(launch),
            context_tokens=launch.context_tokens or None,
            is_hybrid=is_hybrid(launch.model, source_of(launch)),
            caches_prefixes=launch.options.prefix_cache is not False,
        )

    @property
    def engine_name(self) -> str:
        return self.engine.partition(" ")[0].casefold()


class _CalledFunction(msgspec.Struct):
    name: str = ""
    arguments: Any = None


class _MadeCall(msgspec.Struct):
    function: _CalledFunction = msgspec.field(default_factory=_CalledFunction)


class _ChoiceMessage(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[_MadeCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return ""

    @property
    def thinking(self) -> str:
        texts = (self.reasoning, self.reasoning_content)
        return next((text for text in texts if isinstance(text, str)), "")


class _CompletionChoice(msgspec.Struct):
    message: _ChoiceMessage = msgspec.field(default_factory=_ChoiceMessage)
    finish_reason: str | None = None


class _PromptTokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _PromptUsage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _PromptTokenDetails | None = None


class _LlamaTimings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None


class _CompletionAnswer(msgspec.Struct):
    choices: list[_CompletionChoice] = []
    usage: _PromptUsage | None = None
    timings: _LlamaTimings | None = None


_DECODER = msgspec.json.Decoder(_CompletionAnswer)


Check = Callable[[], Awaitable[AgentCheck]]


class _NotChecked(Exception):
    """The server did not answer the question; the message says what it did instead."""

    def __init__(self, why: str, hint: str, *, answered: bool = False) -> None:
        super().__init__(why)
        self.hint = hint
        self.answered = answered


async def check_for_agents(
    endpoint: CheckedEndpoint,
    deadline_s: float = DEADLINE_S,
    tell: Callable[[AgentCheck], None] = lambda _check: None,
) -> tuple[AgentCheck, ...]:
    """Return the results of both checks. A check that is not over at the deadline is "unknown".

    Each result that is not "ok" has a hint. `tell` is called with each as soon as it is there.
    """
    origin, path = parse_url(endpoint.url, name="url")
    pool = Pool(origin, connect_timeout_s=CONNECT_S, prefix=path.removesuffix("/v1").encode())
    requests = _Requests(pool, endpoint)
    steps = (
        ("tool_calls", "tool calls", requests.check_tool_calls),
        ("prefix_cache", "prefix cache", requests.check_prefix_cache),
    )
    ends_at = asyncio.get_running_loop().time() + deadline_s
    checks: list[AgentCheck] = []
    try:
        for name, label, step in steps:
            check = await _bounded(name, label, step, ends_at)
            checks.append(check)
            tell(check)
    finally:
        await pool.close()
    return tuple(checks)


def check_documents(checks: Iterable[AgentCheck]) -> dict[str, Any]:
    """Return the checks by name as JSON has them."""
    documents: dict[str, Any] = {check.name: msgspec.to_builtins(check) for check in checks}
    for document in documents.values():
        del document["name"]
    return documents


async def _bounded(name: str, label: str, check: Check, ends_at: float) -> AgentCheck:
    answered = False
    try:
        async with asyncio.timeout_at(ends_at):
            return await check()
    except TimeoutError:
        why = "there was no answer in time"
        hint = "it is slow or busy: try again while nobody else uses it"
    except _NotChecked as failure:
        why = str(failure)
        hint = failure.hint
        answered = failure.answered
    except WireFailure as failure:
        why = one_line(str(failure))
        hint = f"{_ANOTHER_SERVER}, and is it still running?"
    # An answer that nobody thought of costs this result, and no replica.
    except Exception as error:
        why = f"the answer led to {type(error).__name__}"
        hint = _ANOTHER_SERVER + "?"
    text = f"{label}: not checked, {why}"
    return AgentCheck(name, "unknown", text, hint, answered=answered)


class _Requests:
    """Asks one endpoint. The deadline is the caller's."""

    def __init__(self, pool: Pool, endpoint: CheckedEndpoint) -> None:
        self._pool = pool
        self._endpoint = endpoint

    async def check_tool_calls(self) -> AgentCheck:
        if await self._template_knows_tools() is False:
            why = "the model's chat template knows no tools"
            text = f"none, {why}: agents cannot call tools with it"
            return _tool_calls("warning", text, _ANOTHER_MODEL)
        answer = await self._ask(_call_body(CALL_TOKENS) | _WITHOUT_THINKING)
        if 400 <= answer.status < 500:  # a server that does not know that field
            answer = await self._ask(_call_body(CALL_TOKENS))
        if answer.status == 200 and _is_still_thinking(answer):
            answer = await self._ask(_call_body(THINKING_TOKENS))
        if answer.status not in (200, 400, 422):
            raise _not_answered(answer, has_key=bool(self._endpoint.headers))
        return judge_tool_call(answer.status, answer.text, self._endpoint.engine_name)

    async def check_prefix_cache(self) -> AgentCheck:
        endpoint = self._endpoint
        if not endpoint.caches_prefixes:
            hint = "set it to true, or every turn reads the whole session again"
            return _prefix_cache("unknown", "off, as prefix_cache = false says", hint)
        context_tokens = endpoint.context_tokens or 2 * LONG_PROMPT_TOKENS
        max_tokens = context_tokens // 2
        if max_tokens < LEAST_PROMPT_TOKENS:
            text = f"not checked, {endpoint.context_tokens} tokens of context are too few"
            return _prefix_cache(
                "unknown", text, "agents need a longer context: tens of thousands"
            )
        on_cpu = endpoint.engine_name in ("embedded", "xllamacpp")
        usual = CPU_PROMPT_TOKENS if on_cpu else USUAL_PROMPT_TOKENS
        tokens = min(max_tokens, LONG_PROMPT_TOKENS if endpoint.is_hybrid else usual)
        share = await self._share_cached(tokens)
        longest = min(max_tokens, LONG_PROMPT_TOKENS)
        if share == 0 and tokens < longest and endpoint.engine_name not in _BY_TEMPLATE:
            tokens = longest  # its blocks may be longer than the prompt
            share = await self._share_cached(tokens)
        return judge_prefix_cache(share, tokens, endpoint)

    async def _share_cached(self, tokens: int) -> float | None:
        """Send a prompt twice. Return the share of it that was cached the second time; None:
        neither the answer nor the counters tell.
        """
        body = _long_body(tokens)
        first = await self._ask(body)
        if 400 <= first.status < 500:  # some chat templates have no place for a system prompt
            body = _long_body(tokens, role="user")
            first = await self._ask(body)
        self._completion(first)
        before = await self._counters()
        second = self._completion(await self._ask(body))
        share = share_told(second)
        if share is not None or not before:
            return share
        after = await self._counters()
        return share_counted(before, after)

    def _completion(self, answer: HttpResponse) -> _CompletionAnswer:
        if answer.status != 200:
            raise _not_answered(answer, has_key=bool(self._endpoint.headers))
        return _decode(answer.text)

    async def _template_knows_tools(self) -> bool | None:
        """Return whether the chat template knows tools, as llama.cpp says; None: it does not say,
        or the engine is not llama.cpp.
        """
        if self._endpoint.engine_name not in _BY_TEMPLATE:
            return None
        properties = await self._state("/props", _object)
        capabilities = (properties or {}).get("chat_template_caps")
        if isinstance(capabilities, dict):
            supports_tools = capabilities.get("supports_tools")
        else:
            supports_tools = None
        if isinstance(supports_tools, bool):
            return supports_tools
        return None

    async def _counters(self) -> dict[str, float]:
        """Return the engine's counters; empty where it has none."""
        try:
            return await self._state("/metrics", parse_metrics) or {}
        except WireFailure:
            return {}

    async def _state(self, path: str, parse: Callable[[str], T]) -> T | None:
        headers = self._endpoint.headers
        return await fetch_state(self._pool, path, parse, headers=headers, timeout_s=CONNECT_S)

    async def _ask(self, body: dict[str, Any]) -> HttpResponse:
        fields = {"model": self._endpoint.model, "temperature": 0, **body}
        headers = dict(self._endpoint.headers)
        answer = await fetch(
            self._pool,
            "POST",
            "/v1/chat/completions",
            body=fields,
            headers=headers,
            timeout_s=DEADLINE_S,
            most_bytes=LARGEST_ANSWER_BYTES,
        )
        if sum(answer.body.count(mark) for mark in (b"{", b"[", b",")) > MOST_VALUES:
            raise _no_completion()
        return answer


def judge_tool_call(status: int, body: str, engine: str) -> AgentCheck:
    """Return the result for an answer to a forced tool call: with status 200 a completion, else a
    refusal.

    `engine`: its name, in lower case.
    """
    if status != 200:
        return _judge_refusal(status, body)
    choice = _first_choice(body)
    message = choice.message
    if message.tool_calls:
        function = message.tool_calls[0].function
        if function.name and _is_object(function.arguments):
            return _tool_calls("ok", "ok")
        text = "malformed, their arguments are no JSON object"
        return _tool_calls("warning", text, _parser_hint(engine))
    if _is_call_as_text(message.text) and choice.finish_reason == "length":
        text = "not seen, a call began and did not end in time"
        return _tool_calls("unknown", text, f"the model may not know tools: {_ANOTHER_MODEL}")
    if _is_call_as_text(message.text):
        text = "they come as text, so that agents do not see them"
        return _tool_calls("warning", text, _parser_hint(engine))
    if message.text.strip():
        text = "none, the model answered with text though a call was required"
        return _tool_calls("warning", text, _no_call_hint(engine))
    if message.thinking.strip() and choice.finish_reason == "length":
        text = f"not seen, the model was still thinking after {THINKING_TOKENS:,} tokens"
        return _tool_calls(
            "unknown", text, "turn its thinking off, or lower its effort, to see one"
        )
    if message.thinking.strip():
        hint = 'a model that does not think needs reasoning_parser = "none"'
        return _tool_calls("warning", "none, the whole answer came as reasoning", hint)
    return _tool_calls("warning", "none, the answer was empty", _no_call_hint(engine))


def _judge_refusal(status: int, body: str) -> AgentCheck:
    if "--tool-call-parser" in body or "--enable-auto-tool-choice" in body:
        text = "refused, vLLM was started without --tool-call-parser: agents cannot call tools"
        other_vllm = "a vLLM of your own wants --enable-auto-tool-choice beside it"
        hint = f"set tool_parser to the model's parser; {other_vllm}"
        return _tool_calls("warning", text, hint)
    hint = "agents cannot call tools here: the server's documentation says what its models can do"
    return _tool_calls("warning", f"refused with {_status_words(status, body)}", hint)


def _not_answered(answer: HttpResponse, *, has_key: bool) -> _NotChecked:
    """Return the error for a status that says nothing about the check, with a hint."""
    is_refusal = answer.status in (400, 413, 422)
    hint = "its own log may say more"
    location = one_line((answer.head.get(b"location") or b"").decode("latin-1"), SHOWN_ERROR)
    if is_refusal:
        hint = "its context may be shorter than the prompt"
    elif answer.status in (401, 403):
        if has_key:
            hint = "check the key's value"
        else:
            hint = "name the variable of its key with --key-env"
    elif 300 <= answer.status < 400:
        hint = f"ask the server that it leads to ({location or 'it does not say where'})"
    elif answer.status in (404, 405, 501):
        hint = f"{_ANOTHER_SERVER}? /v1/chat/completions is asked there"
    elif answer.status in (429, 503):
        hint = "it is busy, or still loading: try again later"
    return _NotChecked(_status_words(answer.status, answer.text), hint, answered=is_refusal)


def _status_words(status: int, body: str) -> str:
    message = one_line(_error_message(body), SHOWN_ERROR)
    if message:
        return f"HTTP {status} ({message})"
    return f"HTTP {status}"


def judge_prefix_cache(share: float | None, tokens: int, endpoint: CheckedEndpoint) -> AgentCheck:
    """Return the result for the share of a prompt that was cached. `tokens`: its length, about."""
    if share is None:
        hint = "vLLM tells with --enable-prompt-tokens-details, SGLang with --enable-cache-report"
        return _prefix_cache("unknown", "not told by the engine", hint)
    if share >= GOOD_SHARE:
        return _prefix_cache("ok", f"{_percent(share)} hit", share=share)
    if share == 0 and endpoint.is_hybrid and tokens < LONG_PROMPT_TOKENS:
        text = (
            f"no hit in {tokens:,} tokens, which may be less than the engine caches in one piece"
        )
        hint = f"only a context of {2 * LONG_PROMPT_TOKENS:,} tokens would show it"
        return _prefix_cache("unknown", text, hint, share)
    hint = "leave prefix_cache on; `skep logs NAME` shows what the engine made of it"
    if endpoint.engine_name == "vllm" and endpoint.is_hybrid is not False:
        misses = "some versions of vLLM miss with linear attention, most with drafts"
        hint = f"{misses}: try another one, or --spec none"
    if share == 0:
        text = "no hit, every turn reads the whole session again"
    else:
        text = f"only {_percent(share)} hit, every turn reads most of the session again"
    return _prefix_cache("warning", text, hint, share)


def share_told(answer: _CompletionAnswer) -> float | None:
    """Return the share of the prompt that was cached, by its answer; None: it does not tell."""
    usage = answer.usage
    timings = answer.timings
    if usage is not None and usage.prompt_tokens > 0:
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return _share(details.cached_tokens, usage.prompt_tokens)
    if timings is not None and timings.cache_n is not None and timings.prompt_n is not None:
        return _share(timings.cache_n, timings.cache_n + timings.prompt_n)
    return None


def share_counted(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Return the cached share by an engine's counters before and after the second request; None:
    none of them moved.
    """
    for hits, queries in _COUNTERS:
        queried = after.get(queries, 0.0) - before.get(queries, 0.0)
        if queried > 0:
            return _share(after.get(hits, 0.0) - before.get(hits, 0.0), queried)
    return None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(part: float, whole: float) -> float | None:
    if whole > 0:
        return max(0.0, min(1.0, part / whole))
    return None


def _call_body(max_tokens: int) -> dict[str, Any]:
    """Return a request that forces a call. One tool and "required" do so: llama.cpp does not know
    the form of `tool_choice` that names a tool.
    """
    messages = [{"role": "user", "content": "What does the file notes.txt say?"}]
    return {
        "messages": messages,
        "tools": [_TOOL],
        "tool_choice": "required",
        "max_tokens": max_tokens,
    }


def _long_body(tokens: int, role: str = "system") -> dict[str, Any]:
    """Return a request like an agent's: a long text that stays the same, and a short question."""
    numbers = range(tokens // TOKENS_A_LINE)
    lines = (f"Line {n}: the river carries {7 * n} boats past the old mill. " for n in numbers)
    question = "Answer with one word: are you ready?"
    text = "".join(lines)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    if role != "system":
        messages = [{"role": role, "content": text + question}]
    return {"messages": messages, "max_tokens": 1}


def _is_still_thinking(answer: HttpResponse) -> bool:
    choice = _first_choice(answer.text)
    is_cut = choice.finish_reason == "length" and not choice.message.tool_calls
    return is_cut and (bool(choice.message.thinking) or "<think>" in choice.message.text)


def _is_call_as_text(text: str) -> bool:
    signs = ('{"', "<tool", "<function", "[TOOL", "[read_file")
    return "read_file" in text and any(sign in text for sign in signs)


def _is_object(arguments: object) -> bool:
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _first_choice(text: str) -> _CompletionChoice:
    return _decode(text).choices[0]


def _decode(text: str) -> _CompletionAnswer:
    """Return a completion, which has a choice: some servers answer with 200 and an error."""
    try:
        answer = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise _no_completion() from None
    if not answer.choices:
        raise _no_completion(one_line(_error_message(text), SHOWN_ERROR))
    return answer


def _no_completion(message: str = "") -> _NotChecked:
    why = "the answer is no chat completion"
    return _NotChecked(f"{why} ({message})" if message else why, f"{_ANOTHER_SERVER}?")


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if isinstance(document, dict):
        return document
    return {}


def _error_message(text: str) -> str:
    document = _object(text)
    error = document.get("error")
    if isinstance(error, dict):
        message = error.get("message")
    else:
        message = error or document.get("message")
    return message if isinstance(message, str) else ""


def _parser_hint(engine: str) -> str:
    if engine in _BY_TEMPLATE:
        return "start llama-server with --jinja and the model's own chat template"
    return "set tool_parser to the model's parser: the engine has none, or another model's"


def _no_call_hint(engine: str) -> str:
    if engine in _BY_TEMPLATE:
        return f"the model's chat template knows no tools, perhaps: {_ANOTHER_MODEL}"
    if engine == "vllm":
        ignored = "vLLM 0.28 ignores that for many parsers, and from 0.24 on for gemma4"
        parser = "Else set tool_parser to the model's parser"
        return f"{ignored}: agents may call tools all the same. {parser}"
    if engine == "sglang":
        return _parser_hint(engine)
    return f"the server ignores tool_choice, or the model knows no tools: {_ANOTHER_MODEL}"


def _tool_calls(state: State, text: str, hint: str | None = None) -> AgentCheck:
    return AgentCheck("tool_calls", state, f"tool calls: {text}", hint)


def _prefix_cache(
    state: State, text: str, hint: str | None = None, share: float | None = None
) -> AgentCheck:
    return AgentCheck("prefix_cache", state, f"prefix cache: {text}", hint, share)
