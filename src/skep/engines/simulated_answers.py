"""Answers of a simulated engine as bytes: whole, or as server-sent events. Each says that it is simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from skep.engines.simulated_asks import Ask

DONE = b"data: [DONE]\n\n"


class Writer:
    """One answer. What all its events have in common is written once."""

    __slots__ = ("_ask", "_fields", "_prefix", "_suffix")

    def __init__(self, ask: Ask, number: int, model: str, created: int) -> None:
        kind = ("chat.completion.chunk" if ask.stream else "chat.completion") if ask.chat else "text_completion"
        name = f"{'chatcmpl' if ask.chat else 'cmpl'}-simulated-{number}"
        self._ask = ask
        self._fields: Mapping[str, Any] = {
            "id": name, "object": kind, "created": created, "model": model, "simulated": True,
        }  # fmt: skip
        before, _, after = _event({**self._fields, "choices": [self._choice("\0", None)]}).partition(b'"\\u0000"')
        self._prefix, self._suffix = before, after

    def opening(self) -> bytes:
        """The role, which only a chat has."""
        if not self._ask.chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return _event({**self._fields, "choices": [choice]})

    def piece(self, text: str) -> bytes:
        return self._prefix + json.dumps(text).encode() + self._suffix

    def ending(self) -> bytes:
        script = self._ask.script
        last = _event({**self._fields, "choices": [self._choice("", script.finish_reason)]})
        if self._ask.include_usage:
            last += _event({**self._fields, "choices": [], "usage": self._usage()})
        return last + DONE

    def whole(self, text: str) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._ask.script.finish_reason, "logprobs": None}
        if self._ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return json.dumps({**self._fields, "choices": [choice], "usage": self._usage()}).encode()

    def _usage(self) -> dict[str, Any]:
        prompt, output = self._ask.prompt_tokens, self._ask.script.tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _choice(self, text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text} if text else {}} if self._ask.chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish}


def _event(fields: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
