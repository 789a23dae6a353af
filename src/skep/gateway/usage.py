"""How many tokens an answer says it has. Reads OpenAI's and Anthropic's usage, llama.cpp's timings and Ollama's counts.

Knows bytes only. What nobody says stays None: chunks are never counted instead. Numbers that no answer can have are
taken for unsaid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

MOST_TOKENS = 10**9  # of one answer; also keeps what is stored and counted within 64 bits
_WHOLE_BYTES = 16_384  # answers up to this size are decoded whole
_TAIL_BYTES = 1 << 20  # of an answer's end that are looked at
_NULLS, _TRIES = 24, 6  # events looked at from a stream's end: those without a usage, those decoded
_COUNTS = (b'"usage"', b'"timings"', b'"prompt_eval_count"', b'"eval_count"')


class Tokens(msgspec.Struct, frozen=True):
    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    reasoning: int | None = None  # of the output


UNKNOWN = Tokens()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Timings(msgspec.Struct):
    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class _Inner(msgspec.Struct):
    usage: _Usage | None = None


class _UsageReport(msgspec.Struct):
    usage: _Usage | None = None
    timings: _Timings | None = None
    response: _Inner | str | None = None  # the Responses API's last event; Ollama's `response` is a text
    message: _Inner | str | None = None  # Anthropic's first event
    prompt_eval_count: int | None = None
    eval_count: int | None = None


_decoder = msgspec.json.Decoder(_UsageReport)


def tokens_of(first: bytes, last: Iterable[bytes], *, streamed: bool) -> Tokens:
    """From an answer's first piece and its last ones (all of them, where it was short)."""
    text = b"".join(last)[-_TAIL_BYTES:]
    if streamed:
        return _of_stream(first, text)
    ways = (_read, _ending) if len(text) <= _WHOLE_BYTES else (_ending, _read)
    said = ways[0](text) or ways[1](text)
    return _tokens(said) if said is not None else UNKNOWN


def _of_stream(first: bytes, text: bytes) -> Tokens:
    """What comes last counts: usage may be told all along."""
    found = UNKNOWN
    for payload in _payloads(text):
        found = _filled(found, _read(payload))
        if found.output is not None and found.prompt is not None:
            return found
    if found.prompt is None and b"message_start" in first:
        line = next((line for line in first.split(b"\n") if line.startswith(b"data:")), b"")
        found = _filled(found, _read(line[5:]))
    return found


def _payloads(text: bytes) -> Iterator[bytes]:
    """Yield the events that may tell of tokens, the last one first."""
    for word in (b'"usage"', b'"timings"'):
        at, tries = text.rfind(word), 0
        for _ in range(_NULLS):
            if at < 0 or tries == _TRIES:
                break
            begin, behind = text.rfind(b"\n", 0, at) + 1, at + len(word)
            if not text[behind : behind + 8].replace(b" ", b"").startswith(b":null"):
                end = text.find(b"\n", behind)
                yield text[begin : end if end >= 0 else len(text)].removeprefix(b"data:")
                tries += 1
            at = text.rfind(word, 0, begin)


def _ending(text: bytes) -> _UsageReport | None:
    """The document's own counts from its end: JSON with a brace before it exactly if they are not inside another."""
    for word in _COUNTS:
        at = text.rfind(word)
        said = _read(b"{" + text[at:]) if at >= 0 else None
        if said is not None:
            return said
    return None


def _read(payload: bytes) -> _UsageReport | None:
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _filled(known: Tokens, said: _UsageReport | None) -> Tokens:
    if said is None:
        return known
    more = _tokens(said)
    output = known.output if known.output is not None else more.output
    source = known if known.prompt is not None else more
    return Tokens(source.prompt, source.cached, output, known.reasoning or more.reasoning)


def _tokens(said: _UsageReport) -> Tokens:
    usage, timings = said.usage, said.timings
    begun = False
    if usage is None and isinstance(said.response, _Inner):
        usage = said.response.usage
    if usage is None and isinstance(said.message, _Inner):
        usage, begun = said.message.usage, True  # Anthropic's first event: its output has only begun
    if usage is None and timings is None:
        return Tokens(_sum(said.prompt_eval_count), None, _sum(said.eval_count))
    cached = timings.cache_n if timings is not None else None
    if usage is None:
        assert timings is not None
        # `prompt_n` are the tokens that were computed. Without the number of cached ones the prompt's is unknown.
        prompt = _sum(timings.prompt_n, cached) if cached is not None else None
        return Tokens(prompt, _sum(cached), _sum(timings.predicted_n))
    output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    if details is not None:
        cached = details.cached_tokens
    if usage.prompt_tokens is not None:
        prompt = _sum(usage.prompt_tokens)
    else:  # Anthropic counts what was read from or written to the cache apart
        if usage.cache_read_input_tokens is not None:
            cached = usage.cache_read_input_tokens
        prompt = _sum(usage.input_tokens, usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0)
    of_output = usage.completion_tokens_details or usage.output_tokens_details
    reasoning = _sum(of_output.reasoning_tokens) if of_output is not None else None
    return Tokens(prompt, _sum(cached), None if begun else _sum(output), reasoning)


def _sum(*counts: int | None) -> int | None:
    """None where one of them is unknown, or not a number of tokens."""
    total = 0
    for count in counts:
        if count is None or not 0 <= count <= MOST_TOKENS:
            return None
        total += count
    return total
