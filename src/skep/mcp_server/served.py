"""What an endpoint says that it serves, with the slots where it is skep's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skep.errors import EndpointError
from skep.wire.client import Pool, WireFailure
from skep.wire.fetch import fetch
from skep.wire.heads import parse_url

ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Served:
    id: str
    slots: int | None = None  # None: it does not say
    replicas: int | None = None
    engine: str | None = None
    simulated: bool | None = None
    state: str | None = None


async def ask_models(url: str, key: str | None) -> tuple[Served, ...]:
    """Raises EndpointError where it does not answer as an OpenAI-compatible server does."""
    origin, path = parse_url(url)
    target = f"{path if path.endswith('/v1') else f'{path}/v1'}/models"
    pool = Pool(origin, connect_timeout_s=ANSWER_S)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = await fetch(pool, "GET", target, headers=headers, timeout_s=ANSWER_S)
    except WireFailure as failure:
        hint = f"is something serving at {url}? `skep up -d` on the shell starts one"
        raise EndpointError(str(failure), hint=hint) from None
    finally:
        await pool.close()
    if answer.status in (401, 403):
        hint = "set SKEP_API_KEY, or --key-env, where `skep mcp` is started"
        raise EndpointError(f"{url} wants another API key (HTTP {answer.status})", hint=hint)
    document = answer.json()
    data = document.get("data") if isinstance(document, dict) else None
    if answer.status != 200 or not isinstance(data, list):
        hint = "--url is the base URL of an OpenAI-compatible server"
        raise EndpointError(f"{url} gave no list of models (HTTP {answer.status})", hint=hint)
    return tuple(_served(entry) for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str))


def _served(entry: dict[str, Any]) -> Served:
    told = entry.get("skep")
    if not isinstance(told, dict):
        return Served(entry["id"])
    return Served(
        entry["id"],
        slots=told.get("slots"),
        replicas=told.get("replicas"),
        engine=told.get("engine"),
        simulated=told.get("simulated"),
        state=told.get("state"),
    )
