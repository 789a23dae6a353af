"""Requests to a simulated engine, read and counted, and the errors vLLM gives for those it does not take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skep.engines.simulated_words import Script, script, seed_of

BYTES_PER_TOKEN = 4.0
_TEMPLATE_TOKENS = 3.0  # a chat begins and ends with some of its own
_MESSAGE_TOKENS = 4.0  # role and separators
_PICTURE_TOKENS = 256.0
_KINDS = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Ask:
    chat: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int
    script: Script


def error_document(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}, "simulated": True}


def parse_ask(body: bytes, *, chat: bool, model: str, context_tokens: int) -> Ask:
    """Raises `Refused` with what the client is told."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is not a JSON object")
    wanted = fields.get("model")
    if wanted is not None and wanted != model:
        raise Refused(404, f"The model `{wanted}` does not exist.")
    if fields.get("n") not in (None, 1):
        raise Refused(400, f"`n` is {fields['n']!r}: the simulated engine gives one choice")
    text, tokens = _chat_prompt(fields) if chat else _plain_prompt(fields.get("prompt"))
    options = fields.get("stream_options")
    return Ask(
        chat=chat,
        stream=bool(fields.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        prompt_tokens=tokens,
        script=_script(fields, text, tokens, context_tokens, chat=chat),
    )


def _script(fields: Mapping[str, Any], text: str, tokens: int, context_tokens: int, *, chat: bool) -> Script:
    asked = _count(fields, "max_completion_tokens", 1) or _count(fields, "max_tokens", 1)
    if asked is None and not chat:
        asked = 16  # the completions API has always had so few
    least = _count(fields, "min_tokens", 0) or 0
    if asked is not None and least > asked:
        raise Refused(400, f"min_tokens must be less than or equal to max_tokens={asked}, got {least}.")
    if tokens >= context_tokens or tokens + (asked or 0) > context_tokens:
        where = "messages" if chat else "prompt"
        raise Refused(
            400,
            f"This model's maximum context length is {context_tokens} tokens. However, you requested "
            f"{tokens + (asked or 1)} tokens ({tokens} in the {where}, {asked or 1} in the completion). "
            f"Please reduce the length of the {where} or completion.",
        )
    limit = asked or context_tokens - tokens
    return script(
        seed_of(text),
        limit,
        min_tokens=min(least, limit),
        ignore_eos=bool(fields.get("ignore_eos")),
        stop=_stop(fields),
    )


def _chat_prompt(fields: Mapping[str, Any]) -> tuple[str, int]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "`messages` is missing or empty")
    texts, tokens = [], _TEMPLATE_TOKENS
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused(400, "each of `messages` wants a `role` and a `content`")
        text, more = _content(message.get("content"))
        calls = message.get("tool_calls")
        text += json.dumps(calls) if calls else ""
        texts.append(text)
        tokens += _tokens(text) + more + _MESSAGE_TOKENS
    if fields.get("tools"):
        tokens += _tokens(json.dumps(fields["tools"]))
    return "\n".join(texts), round(tokens)


def _content(value: Any) -> tuple[str, float]:
    """Its text, and tokens of what is no text."""
    if value is None:
        return "", 0.0
    if isinstance(value, str):
        return value, 0.0
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise Refused(400, "`content` is neither text nor a list of parts")
    texts = [part["text"] for part in value if isinstance(part.get("text"), str)]
    return " ".join(texts), _PICTURE_TOKENS * (len(value) - len(texts))


def _plain_prompt(prompt: Any) -> tuple[str, int]:
    """Text, a list of one text, or token ids."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return str(prompt[:64]), len(prompt)
    if isinstance(prompt, list) and prompt:
        raise Refused(400, f"`prompt` holds {len(prompt)} prompts: the simulated engine takes one at a time")
    if not isinstance(prompt, str) or not prompt:
        raise Refused(400, "`prompt` is missing or empty")
    return prompt, max(1, round(_tokens(prompt)))


def _tokens(text: str) -> float:
    """By bytes: what is not written in Latin letters takes more tokens a character."""
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN


def _count(fields: Mapping[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Refused(400, f"{name} must be at least {least}, got {value!r}.")
    return value


def _stop(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
        raise Refused(400, "`stop` is neither text nor a list of texts")
    return tuple(one for one in strings if one)
