"""Refusals in the words of real engines, `--speaks vllm` or `llama-server`, also in the form that
Anthropic's clients read.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    status: int
    body: dict[str, Any]


def context_refusal(speaks: str | None, dialect: str, *, prompt: int, ctx: int) -> Refusal:
    """Return the refusal of a prompt that is too long.

    Its words are those of vLLM 0.24, entrypoints/openai/serving_engine.py, and of llama-server,
    tools/server/server-context.cpp.
    """
    if speaks == "vllm":
        words = (
            f"This model's maximum context length is {ctx} tokens. However, your request "
            f"has {prompt} input tokens. "
            "Please reduce the length of the input messages."
        )
        return vllm_refusal(words, dialect)
    if speaks == "llama-server":
        words = (
            f"request ({prompt} tokens) exceeds the available context size ({ctx} tokens), try "
            "increasing it"
        )
        error = {
            "code": 400,
            "message": words,
            "type": "exceed_context_size_error",
            "n_prompt_tokens": prompt,
            "n_ctx": ctx,
        }
        return Refusal(400, {"error": error})
    words = f"the prompt has {prompt} tokens, the context holds {ctx}"
    return plain_refusal(
        400, words, "invalid_request_error", dialect, code="context_length_exceeded"
    )


def output_refusal(dialect: str, *, output: int, prompt: int, ctx: int) -> Refusal:
    """Return the refusal of an answer that could outgrow the context; only vLLM refuses it."""
    words = (
        f"'max_tokens' or 'max_completion_tokens' is too large: {output}. This model's "
        f"maximum context length is {ctx} "
        f"tokens and your request has {prompt} input tokens ({output} > {ctx} - {prompt})."
    )
    return vllm_refusal(words, dialect)


def parser_refusal(dialect: str) -> Refusal:
    words = (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    )
    return vllm_refusal(words, dialect)


def vllm_refusal(words: str, dialect: str) -> Refusal:
    if dialect == "messages":
        return Refusal(
            400, {"type": "error", "error": {"type": "BadRequestError", "message": words}}
        )
    error = {"message": words, "type": "BadRequestError", "param": None, "code": 400}
    return Refusal(400, {"error": error})


def plain_refusal(
    status: int, words: str, kind: str, dialect: str = "chat", *, code: Any = None
) -> Refusal:
    """Return a refusal in the fake engine's own words."""
    if dialect == "messages":
        return Refusal(status, {"type": "error", "error": {"type": kind, "message": words}})
    return Refusal(
        status, {"error": {"message": words, "type": kind, "param": None, "code": code or status}}
    )
