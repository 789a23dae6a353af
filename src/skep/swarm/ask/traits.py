"""What an endpoint tells of itself beside its name: how much fits, how large its model is, how long a token is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.bench.tasks import count_tokens
from skep.swarm.client import SwarmClient
from skep.wire.client import Pool
from skep.wire.fetch import fetch_if_there

TINY = 1e9  # parameters, below which a model writes no plan and no merge worth its time
CHARS_PER_TOKEN = 3.0  # where nobody counts: code and prose have more
SAMPLE_CHARS = 2_500
LEAST_SAMPLE = 200  # characters, below which nothing can be said
MARGIN = 0.9  # of what fits: other texts have shorter tokens than the sample
_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([mb])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"m": 1e6, "b": 1e9}


@dataclass(frozen=True, slots=True)
class Traits:
    """None: it does not tell."""

    context: int | None = None  # tokens of one conversation
    parameters: float | None = None

    @property
    def is_tiny(self) -> bool:
        return self.parameters is not None and self.parameters < TINY


async def traits_of(endpoint: Endpoint) -> Traits:
    """Ask as skep, llama.cpp (`/props`, `meta`) or vLLM (`max_model_len`) tell it; the size else as the name has it."""
    props = await _fetched(endpoint, "/props")
    if props.get("model_alias", endpoint.model) != endpoint.model:
        props = {}  # of another model behind the same gateway
    data = (await _fetched(endpoint, f"{endpoint.base}/models")).get("data")
    entries = data if isinstance(data, list) else []
    own = next((one for one in entries if isinstance(one, dict) and one.get("id") == endpoint.model), {})
    settings, meta = props.get("default_generation_settings"), own.get("meta")
    told = [own.get("max_model_len"), endpoint.engine.get("context")]
    told.append(settings.get("n_ctx") if isinstance(settings, dict) else None)
    sizes = [one for one in told if isinstance(one, int) and not isinstance(one, bool) and 256 <= one < 10**8]
    counted = meta.get("n_params") if isinstance(meta, dict) else None
    is_counted = isinstance(counted, int | float) and not isinstance(counted, bool) and counted > 0
    parameters = float(counted) if is_counted and counted is not None else parameters_in(endpoint.model)
    return Traits(min(sizes, default=None), parameters)


def parameters_in(name: str) -> float | None:
    """`smollm2-135m`, `Qwen3-0.6B`; the largest of several (`30b-a3b`). None: it names none."""
    found = [float(number) * _UNITS[unit.lower()] for number, unit in _IN_NAME.findall(name)]
    return max(found, default=None) or None


async def chars_per_token(endpoint: Endpoint, texts: list[str], *, timeout_s: float = 60.0) -> float:
    """Count on a piece of these very texts: by the tokenizer, else by a request of one token, else guess carefully."""
    share = max(SAMPLE_CHARS // max(len(texts), 1), LEAST_SAMPLE)
    sample = "\n".join(text[:share] for text in texts[: SAMPLE_CHARS // LEAST_SAMPLE])[:SAMPLE_CHARS]
    if len(sample) < LEAST_SAMPLE:
        return CHARS_PER_TOKEN
    line = SwarmClient(endpoint, timeout_s=timeout_s)
    try:
        tokens = await count_tokens(line.pool, endpoint, sample)
        if not tokens:
            asked = [{"role": "user", "content": sample}]
            tokens = (await line.ask(asked, fields={"max_tokens": 1})).prompt_tokens
    finally:
        await line.close()
    if not tokens or tokens * 12 < len(sample):
        return CHARS_PER_TOKEN
    return max(0.5, MARGIN * len(sample) / tokens)


async def _fetched(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """Return an empty document where it has none."""
    pool = Pool(endpoint.origin, connect_timeout_s=5.0)
    try:
        answer = await fetch_if_there(pool, "GET", path, headers=dict(endpoint.headers), timeout_s=5.0)
    finally:
        await pool.close()
    return answer.document() if answer else {}
