"""Finding out what answers at a URL before anything is measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from skep.catalog.engines import engine_named_in
from skep.catalog.names import did_you_mean
from skep.errors import EndpointError, KeyRefused, UserError
from skep.wire.client import HttpResponse, Pool, WireFailure, fetch, fetch_if_there
from skep.wire.heads import Origin, parse_url

# Names of llama.cpp's properties, and what skep calls them.
PROPS = {"total_slots": "slots", "build_info": "build", "model_path": "model_path"}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
LONGEST_LOCATION = 200


class Endpoint(msgspec.Struct, frozen=True):
    """An OpenAI-compatible endpoint and the model asked of it."""

    origin: Origin
    base: str  # "/v1", or what stands before it too
    model: str
    headers: Mapping[str, str] = {}
    api: Literal["openai", "ollama"] = "openai"
    engine: Mapping[str, Any] = {}  # what it told of itself

    @property
    def url(self) -> str:
        return f"{self.origin}{self.base}"

    @property
    def simulated(self) -> bool:
        return bool(self.engine.get("simulated"))


def api_of(url: str, key: str | None) -> tuple[Origin, str, dict[str, str]]:
    """Return how to reach an OpenAI-compatible server: its origin, the base of its paths, and
    headers.
    """
    origin, base = parse_url(url)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if not base.endswith("/v1"):
        base = f"{base}/v1"
    return origin, base, headers


async def find_endpoint(
    url: str,
    model: str | None,
    *,
    key: str | None = None,
    api: str = "openai",
    timeout_s: float = 10.0,
) -> Endpoint:
    """Check that the URL answers and knows the model.

    `model` None: the only one it serves. `api`: openai or ollama.
    """
    origin, base, headers = api_of(url, key)
    async with _pool_at(origin, url, timeout_s) as pool:
        answer = await fetch(pool, "GET", f"{base}/models", headers=headers, timeout_s=timeout_s)
        # llama.cpp's own description, where there is one. An error there ends nothing.
        described = await fetch_if_there(pool, "GET", "/props", headers=headers, timeout_s=5.0)
    models = models_of(answer, f"{origin}{base}/models", key_given=key is not None)
    model = chosen_model(models, model, url)
    props = described.document() if described else {}
    engine = {name: props[key] for key, name in PROPS.items() if key in props} | _engine_of(
        models[model], answer
    )
    return Endpoint(
        origin=origin,
        base=base,
        model=model,
        headers=headers,
        api="ollama" if api == "ollama" else "openai",
        engine=engine,
    )


async def served_models(
    url: str, *, key: str | None, timeout_s: float = 10.0
) -> dict[str, dict[str, Any]]:
    """Return the entries of the list of models at a URL, by id."""
    origin, base, headers = api_of(url, key)
    async with _pool_at(origin, url, timeout_s) as pool:
        answer = await fetch(pool, "GET", f"{base}/models", headers=headers, timeout_s=timeout_s)
    return models_of(answer, f"{origin}{base}/models", key_given=key is not None)


@asynccontextmanager
async def _pool_at(origin: Origin, url: str, timeout_s: float) -> AsyncIterator[Pool]:
    """Open connections while the block runs. Raises EndpointError where nothing answers there."""
    pool = Pool(origin, connect_timeout_s=timeout_s)
    try:
        yield pool
    except WireFailure as failure:
        hint = f"is a server running at {url}? `skep up -d` starts one"
        if "WRONG_VERSION" in str(failure):
            hint = "the port answers, but not with TLS: try http:// instead of https://"
        raise EndpointError(str(failure), hint=hint) from None
    finally:
        await pool.close()


LEAST_CONTEXT = 256  # what is below it is no context
MOST_CONTEXT = 10**8


async def context_tokens(pool: Pool, endpoint: Endpoint) -> int | None:
    """Return how many tokens one conversation may have, as skep, vLLM (`max_model_len`) or
    llama.cpp (`/props`) says; None: none of them does.
    """
    documents = []
    for path in ("/props", f"{endpoint.base}/models"):
        answer = await fetch_if_there(
            pool, "GET", path, headers=dict(endpoint.headers), timeout_s=5.0
        )
        documents.append(answer.document() if answer else {})
    props, models = documents
    contexts = [endpoint.engine.get("context")]
    contexts += [
        model.get("max_model_len")
        for model in models.get("data") or ()
        if model.get("id") == endpoint.model
    ]
    # Unless it is another model behind the same gateway.
    if props.get("model_alias", endpoint.model) == endpoint.model:
        contexts.append((props.get("default_generation_settings") or {}).get("n_ctx"))
    return min(
        (
            context
            for context in contexts
            if type(context) is int and LEAST_CONTEXT <= context < MOST_CONTEXT
        ),
        default=None,
    )


def chosen_model(models: Mapping[str, Any], model: str | None, url: str) -> str:
    """Return the model that is meant: the named one, else the only one."""
    served = sorted(models)
    if model is None and len(served) != 1:
        message = f"{url} serves {len(served)} models: {', '.join(served) or 'none'}"
        raise UserError(message, hint="choose one with --model")
    model = model or served[0]
    if model not in served:
        hint = did_you_mean(
            get_close_matches(model, served, 1), f"it serves: {', '.join(served) or 'nothing'}"
        )
        raise UserError(f"{url} does not serve `{model}`", hint=hint)
    return model


def models_of(answer: HttpResponse, url: str, *, key_given: bool) -> dict[str, dict[str, Any]]:
    """Return the entries of a list of models, by id. Raises EndpointError where it is none."""
    if answer.status in (401, 403):
        if key_given:
            refusal = "refuses the API key"
            hint = "check the key's value"
        else:
            refusal = "requires an API key"
            hint = "name its variable with --key-env VAR"
        raise KeyRefused(f"{url} {refusal} (HTTP {answer.status})", hint=hint)
    if answer.status in REDIRECTS and (location := answer.head.get(b"location")):
        named = location.decode("latin-1")[:LONGEST_LOCATION].removesuffix("/models")
        raise EndpointError(
            f"{url} is elsewhere (HTTP {answer.status})",
            hint=f"it names {named!r}: try that as --url",
        )
    data = answer.document().get("data")
    if answer.status != 200 or not isinstance(data, list):
        fault = "an answer that is not a model list"
        if answer.status != 200:
            fault = f"HTTP {answer.status}"
        raise EndpointError(
            f"{url} answered with {fault}",
            hint="--url is the base URL of an OpenAI-compatible server",
        )
    return {
        entry["id"]: entry
        for entry in data
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    }


def _engine_of(entry: Mapping[str, Any], answer: HttpResponse) -> dict[str, Any]:
    """Return what a server tells of itself: skep's gateway its slots and engine, llama.cpp and
    vLLM their name.
    """
    facts: dict[str, Any] = {}
    if isinstance(entry.get("skep"), dict):
        facts.update(entry["skep"])
    elif isinstance(entry.get("owned_by"), str):
        facts["engine"] = entry["owned_by"]
    if isinstance(entry.get("meta"), dict):
        facts["meta"] = entry["meta"]
    if server := answer.head.get(b"server"):
        facts["server"] = server.decode("latin-1")
    return facts


def engine_in(description: str | None) -> str | None:
    """Return the engine that a server's description of itself names; None: it names none."""
    return engine_named_in(description or "")
