"""What an endpoint tells of itself beside its name: how much fits, whether it knows tools, how large its model is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.swarm.ask.files import Sources
from skep.swarm.line import Line
from skep.wire.client import Pool, WireFailure
from skep.wire.fetch import fetch

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
    tools: bool | None = None  # False: the model's template has no place for them, whatever the server accepts
    parameters: float | None = None

    @property
    def is_tiny(self) -> bool:
        return self.parameters is not None and self.parameters < TINY


async def traits_of(endpoint: Endpoint) -> Traits:
    """As skep, llama.cpp (`/props`, `meta`) or vLLM (`max_model_len`) tell it; the size else as the name has it."""
    pool = Pool(endpoint.origin, connect_timeout_s=5.0)
    headers = dict(endpoint.headers)
    try:
        props = (await fetch(pool, "GET", "/props", headers=headers, timeout_s=5.0)).json()
        models = (await fetch(pool, "GET", f"{endpoint.base}/models", headers=headers, timeout_s=5.0)).json()
    except WireFailure:
        return Traits(parameters=parameters_in(endpoint.model))
    finally:
        await pool.close()
    if not isinstance(props, dict) or props.get("model_alias", endpoint.model) != endpoint.model:
        props = {}  # of another model behind the same gateway
    data = models.get("data") if isinstance(models, dict) else None
    entries = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    own: dict[str, Any] = next((one for one in entries if one.get("id") == endpoint.model), {})
    told: list[Any] = [own.get("max_model_len"), endpoint.engine.get("context")]
    told.append(_inner(props, "default_generation_settings").get("n_ctx"))
    tools = _inner(props, "chat_template_caps").get("supports_tools")
    counted: Any = _inner(own, "meta").get("n_params")
    return Traits(
        context=min((int(one) for one in told if _is_size(one)), default=None),
        tools=tools if isinstance(tools, bool) else None,
        parameters=float(counted) if _is_number(counted) and counted > 0 else parameters_in(endpoint.model),
    )


def parameters_in(name: str) -> float | None:
    """`smollm2-135m`, `Qwen3-0.6B`; the largest of several (`30b-a3b`). None: it names none."""
    found = [float(number) * _UNITS[unit.lower()] for number, unit in _IN_NAME.findall(name)]
    return max(found, default=None) or None


async def chars_per_token(endpoint: Endpoint, sources: Sources, *, timeout_s: float = 60.0) -> float:
    """Counted by the engine on a piece of these very texts; a careful guess where it does not count."""
    share = max(SAMPLE_CHARS // max(len(sources.names), 1), LEAST_SAMPLE)
    some = sources.names[: SAMPLE_CHARS // LEAST_SAMPLE]
    sample = "\n".join(sources.text(name)[:share] for name in some)[:SAMPLE_CHARS]
    if len(sample) < LEAST_SAMPLE:
        return CHARS_PER_TOKEN
    tokens = await _tokenized(endpoint, sample) or await _read_by_model(endpoint, sample, timeout_s)
    if not tokens or tokens * 12 < len(sample):
        return CHARS_PER_TOKEN
    return max(0.5, MARGIN * len(sample) / tokens)


async def _tokenized(endpoint: Endpoint, text: str) -> int | None:
    """By llama.cpp (`content`) or vLLM (`prompt`), which need not read it for that."""
    pool = Pool(endpoint.origin, connect_timeout_s=5.0)
    body = {"model": endpoint.model, "content": text, "prompt": text}
    try:
        answer = await fetch(pool, "POST", "/tokenize", body=body, headers=dict(endpoint.headers), timeout_s=5.0)
    except WireFailure:
        return None
    finally:
        await pool.close()
    told = answer.json() if answer.status == 200 else None
    tokens = told.get("tokens") if isinstance(told, dict) else None
    return len(tokens) if isinstance(tokens, list) else None


async def _read_by_model(endpoint: Endpoint, text: str, timeout_s: float) -> int | None:
    line = Line(endpoint, timeout_s=timeout_s)
    try:
        reply = await line.ask([{"role": "user", "content": text}], fields={"max_tokens": 1})
    finally:
        await line.close()
    return reply.prompt_tokens


def _inner(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 256 <= value < 10**8
