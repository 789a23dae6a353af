"""How much of a goal's files fits into one prompt: the context of a model in tokens, and its
tokens in characters.

Where no server says how long its context is, or nobody counts tokens, careful guesses stand in."""

from __future__ import annotations

import msgspec

from skep.errors import UserError
from skep.swarm.client import SwarmClient

CHARS_PER_TOKEN = 3.0  # where nobody counts: code and prose have more
SAMPLE_CHARS = 2_500
LEAST_SAMPLE_CHARS = 200  # nothing can be said of less
SAMPLE_MARGIN = 0.9  # of the sample's characters per token: other texts have shorter tokens

# Where the context is unknown: it is what skep's embedded engine gives a slot by default.
DEFAULT_CONTEXT_TOKENS = 2_048
DEFAULT_CHUNK_TOKENS = 1_000
DEFAULT_ANSWER_TOKENS = 512
# About two paragraphs. An answer gets an eighth of the context, but no less than this; of a small
# context no more than a quarter.
LEAST_ANSWER_TOKENS = 256
MOST_CHUNK_TOKENS = 6_000  # models lose details in more, however large their context is
MOST_ANSWER_TOKENS = 2_048
PROMPT_TOKENS = 350  # of the texts around the material


class Sizes(msgspec.Struct, frozen=True):
    """What fits into a context: texts are cut by characters, answers are limited by tokens."""

    chunk_chars: int  # of one task's material
    merge_chars: int  # of the answers that are merged at once
    answer_tokens: int
    chars_per_token: float


async def chars_per_token(client: SwarmClient, texts: list[str]) -> float:
    """Return how many characters a token has, measured on a sample of the texts by a request for
    one token; else a careful guess.
    """
    chars_each = max(SAMPLE_CHARS // max(len(texts), 1), LEAST_SAMPLE_CHARS)
    beginnings = [text[:chars_each] for text in texts[: SAMPLE_CHARS // LEAST_SAMPLE_CHARS]]
    sample = "\n".join(beginnings)[:SAMPLE_CHARS]
    if len(sample) < LEAST_SAMPLE_CHARS:
        return CHARS_PER_TOKEN
    messages = [{"role": "user", "content": sample}]
    tokens = (await client.ask(messages, fields={"max_tokens": 1}, timeout_s=60.0)).prompt_tokens
    # A count of more than 12 characters a token is not believed.
    if tokens and tokens * 12 >= len(sample):
        return max(0.5, SAMPLE_MARGIN * len(sample) / tokens)
    return CHARS_PER_TOKEN


def sizes_of(
    context: int | None, per_token: float, *, chunk_tokens: int | None, max_tokens: int | None
) -> Sizes:
    """Return what fits into a context; UserError where nothing would."""
    context_tokens = context or DEFAULT_CONTEXT_TOKENS
    if context is None:
        default_answer = DEFAULT_ANSWER_TOKENS
    else:
        default_answer = min(max(context // 8, LEAST_ANSWER_TOKENS), context // 4)
    answer = max_tokens or min(default_answer, MOST_ANSWER_TOKENS)
    room = context_tokens - answer - PROMPT_TOKENS
    if context is None and chunk_tokens is not None:
        # Who asks for larger pieces knows of a larger context.
        room = max(room, chunk_tokens)
    if room < 100:
        raise UserError(
            f"a context of {context_tokens:,} tokens leaves no room beside answers of {answer:,}",
            hint="use a smaller --max-tokens",
        )
    chunk = chunk_tokens or min(room, MOST_CHUNK_TOKENS if context else DEFAULT_CHUNK_TOKENS)
    if chunk > room:
        raise UserError(
            f"--chunk-tokens {chunk:,} does not fit into a context of {context_tokens:,} tokens",
            hint=f"at most {room:,}, or a smaller --max-tokens",
        )
    return Sizes(int(chunk * per_token), int(room * per_token), answer, round(per_token, 3))
