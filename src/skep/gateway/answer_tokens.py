"""How many tokens an answer says it has: OpenAI's and Anthropic's usage, llama.cpp's timings and
Ollama's counts.

What no engine tells stays None: chunks are never counted instead. Numbers that no answer can have
count as not told."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

MOST_TOKENS = 10**9  # of one answer; also keeps what is stored and counted within 64 bits
_WHOLE_BYTES = 16_384  # answers up to this size are decoded whole
_ENDING_BYTES = 1 << 20  # of an answer's end that are looked at
# from a stream's end: those that are looked at, those decoded
_LINES = 128
_DECODED = 6
_TELLS = re.compile(rb'"timings"|"usage"\s*+:(?!\s*+null)')
# What ends in the call of a tool, in the words of the three dialects. No text can forge it: its
# quotes have backslashes before them.
_TOOL_WORDS = (b'tool_calls"', b'tool_use"', b'_call"')
_TOOL_CALL = re.compile(
    rb'"(?:finish_reason|stop_reason)"\s*+:\s*+"(?:tool_calls|tool_use|function_call)"'
    rb'|"type"\s*+:\s*+"(?:function_call|custom_tool_call|local_shell_call)"'
)
_TOOL_BYTES = 65_536  # of an answer's end that are searched for it
_COUNTS = (b'"usage"', b'"timings"', b'"prompt_eval_count"', b'"eval_count"')


class Tokens(msgspec.Struct, frozen=True):
    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    reasoning: int | None = None  # of the output


NO_COUNTS = Tokens()


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
    response: _Inner | str | None = None  # the Responses API's last event; a text of Ollama's
    message: _Inner | str | None = None  # Anthropic's first event
    prompt_eval_count: int | None = None
    eval_count: int | None = None


_reports = msgspec.json.Decoder(_UsageReport)


def _reported(text: bytes) -> _UsageReport | None:
    """Return the report that a text holds; None: it cannot be read as one."""
    try:
        return _reports.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def tokens_of(first: bytes, last: Iterable[bytes], *, streamed: bool) -> Tokens:
    """Return the counts from an answer's first piece and its last ones, which are all of them
    where it was short.
    """
    text = b"".join(last)[-_ENDING_BYTES:]
    if streamed:
        return _of_stream(first, text)
    if len(text) <= _WHOLE_BYTES:
        report = _reported(text) or _ending(text)
    else:
        report = _ending(text) or _reported(text)
    if report is not None:
        return _tokens(report)
    return NO_COUNTS


def ends_in_tool_call(last: Iterable[bytes]) -> bool:
    """Return whether an answer ends in the call of a tool, by its last pieces."""
    text = b"".join(last)[-_TOOL_BYTES:]
    if not any(word in text for word in _TOOL_WORDS):
        return False
    return _TOOL_CALL.search(text) is not None


def _of_stream(first: bytes, text: bytes) -> Tokens:
    """Return the counts of a stream. What comes last counts: usage may be told all along."""
    tokens = NO_COUNTS
    tries = 0
    for line in reversed(text.rsplit(b"\n", _LINES)):
        if tries < _DECODED and _TELLS.search(line):
            tries += 1
            tokens = _filled(tokens, _reported(line.removeprefix(b"data:")))
            if tokens.output is not None and tokens.prompt is not None:
                return tokens
    if tokens.prompt is None and b"message_start" in first:
        line = next((line for line in first.split(b"\n") if line.startswith(b"data:")), b"")
        tokens = _filled(tokens, _reported(line[5:]))
    return tokens


def _ending(text: bytes) -> _UsageReport | None:
    """Return the document's own counts, from its end: with a brace before them it is JSON exactly
    if they are not inside another object.
    """
    for word in _COUNTS:
        at = text.rfind(word)
        report = _reported(b"{" + text[at:]) if at >= 0 else None
        if report is not None:
            return report
    return None


def _filled(tokens: Tokens, report: _UsageReport | None) -> Tokens:
    """Return the tokens with what a report from before them adds."""
    if report is None:
        return tokens
    reported = _tokens(report)
    output = tokens.output if tokens.output is not None else reported.output
    source = tokens if tokens.prompt is not None else reported
    return Tokens(source.prompt, source.cached, output, tokens.reasoning or reported.reasoning)


def _tokens(report: _UsageReport) -> Tokens:
    """Return what a report says, whichever engine wrote it."""
    if report.usage is not None:
        return _of_usage(report.usage, report.timings)
    if isinstance(report.response, _Inner) and report.response.usage is not None:
        return _of_usage(report.response.usage, report.timings)
    if isinstance(report.message, _Inner) and report.message.usage is not None:
        # Anthropic's first event: its output has only begun.
        tokens = _of_usage(report.message.usage, report.timings)
        return msgspec.structs.replace(tokens, output=None)
    if report.timings is not None:
        return _of_timings(report.timings)
    return Tokens(_sum(report.prompt_eval_count), None, _sum(report.eval_count))


def _of_timings(timings: _Timings) -> Tokens:
    """Return llama.cpp's counts.

    `prompt_n` are the tokens that were computed: without the number of cached ones the prompt's is
    unknown.
    """
    cached = timings.cache_n
    prompt = _sum(timings.prompt_n, cached) if cached is not None else None
    return Tokens(prompt, _sum(cached), _sum(timings.predicted_n))


def _of_usage(usage: _Usage, timings: _Timings | None) -> Tokens:
    cached = timings.cache_n if timings is not None else None
    prompt_details = usage.prompt_tokens_details or usage.input_tokens_details
    if prompt_details is not None:
        cached = prompt_details.cached_tokens
    if usage.prompt_tokens is not None:
        prompt = _sum(usage.prompt_tokens)
    else:  # Anthropic counts what was read from or written to the cache apart
        if usage.cache_read_input_tokens is not None:
            cached = usage.cache_read_input_tokens
        prompt = _sum(
            usage.input_tokens,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
        )
    if usage.completion_tokens is not None:
        output = _sum(usage.completion_tokens)
    else:
        output = _sum(usage.output_tokens)
    output_details = usage.completion_tokens_details or usage.output_tokens_details
    reasoning = _sum(output_details.reasoning_tokens) if output_details is not None else None
    return Tokens(prompt, _sum(cached), output, reasoning)


def _sum(*counts: int | None) -> int | None:
    """Return the sum; None: one of the counts is unknown, or not a number of tokens."""
    total = 0
    for count in counts:
        if count is None or not 0 <= count <= MOST_TOKENS:
            return None
        total += count
    return total
