"""What `/v1/models` tells of the models: in OpenAI's shape with what agents' clients read of it,
or in Anthropic's. Knows replicas as the supervisor describes them, and no requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from skep.config.gateway_messages import ReplicaSpec
from skep.gateway.proxy import Proxy

T = TypeVar("T")
_SEVERITY = ("ok", "unknown", "warning")


def model_document(proxy: Proxy, model: str, created: int = 0) -> dict[str, Any]:
    """`created`: when this gateway began, in unix time."""
    specs = _specs_of(proxy, model)
    document: dict[str, Any] = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "skep",
    }
    context = shared_context(specs)
    if context is not None:  # vLLM's name, that of several routers, and llama.cpp's
        document["max_model_len"] = context
        document["context_length"] = context
        document["meta"] = {"n_ctx": context}
    modalities = modalities_of(specs)
    document["input_modalities"] = modalities
    document["architecture"] = {"input_modalities": modalities, "output_modalities": ["text"]}
    aliases = [alias for alias, target in proxy.policy.aliases.items() if target == model]
    if aliases:
        document["aliases"] = aliases
    document["skep"] = serving_document(proxy, model, specs, context)
    return document


def _specs_of(proxy: Proxy, model: str) -> list[ReplicaSpec]:
    return [replica.spec for replica in proxy.admission.table() if replica.spec.model == model]


def serving_document(
    proxy: Proxy, model: str, specs: list[ReplicaSpec], context: int | None
) -> dict[str, Any]:
    """Return what skep itself tells: how the model is served here."""
    serving: dict[str, Any] = {
        "replicas": len(specs),
        "slots": sum(spec.slots for spec in specs),
        "engine": ", ".join(sorted({spec.engine for spec in specs})),
        "simulated": any(spec.simulated for spec in specs),
    }
    if context is not None:
        serving["context"] = context
    setup = _shared([spec.setup for spec in specs])
    if setup and proxy.guarded:
        serving["setup"] = without_folders(setup)
    elif setup:
        # Without keys only this machine's own programs ask, and `skep calibrate` reads the
        # checkpoint's files.
        serving["setup"] = setup
    preset = _shared([spec.preset for spec in specs])
    if preset:
        serving["preset"] = preset
    checks = worst_checks(specs)
    if checks:
        serving["checks"] = checks
    state = proxy.unloaded.states.get(model)
    if state is not None:
        serving["state"] = state
    return serving


def _shared(values: Sequence[T]) -> T | None:
    """Return what all values are; None: they differ, or there are none."""
    if values and all(value == values[0] for value in values):
        return values[0]
    return None


def shared_context(specs: Iterable[ReplicaSpec]) -> int | None:
    """Return the tokens that any of the replicas takes; None: one of them does not tell."""
    contexts = [spec.context for spec in specs]
    known_contexts = [context for context in contexts if context]
    if known_contexts and len(known_contexts) == len(contexts):
        return min(known_contexts)
    return None


def modalities_of(specs: Iterable[ReplicaSpec]) -> list[str]:
    """Return the kinds of input that all replicas read."""
    modalities = [spec.modalities for spec in specs]
    if not modalities:
        return ["text"]
    return [kind for kind in modalities[0] if all(kind in kinds for kinds in modalities)]


def without_folders(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setup with the names of files alone: clients are not told where these lie on this
    machine.
    """
    return {name: _without_folder(value) for name, value in setup.items()}


def _without_folder(value: object) -> object:
    if isinstance(value, str) and value.startswith(("/", "~")):
        return value.rstrip("/").rpartition("/")[2]
    return value


def worst_checks(specs: Iterable[ReplicaSpec]) -> dict[str, Any]:
    """Return each check by its name, as the replica has it that does worst."""
    worst: dict[str, Any] = {}
    for spec in specs:
        for name, check in spec.checks.items():
            before = worst.get(name)
            if before is None or _severity(check) > _severity(before):
                worst[name] = check
    return worst


def _severity(check: Mapping[str, Any]) -> int:
    state = check.get("state")
    if state in _SEVERITY:
        return _SEVERITY.index(state)
    return 0


def anthropic_document(proxy: Proxy, model: str, created: int) -> dict[str, Any]:
    context = shared_context(_specs_of(proxy, model))
    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
    document = {"type": "model", "id": model, "display_name": model, "created_at": created_at}
    if context is None:
        return document
    return {**document, "max_input_tokens": context}


def model_list(proxy: Proxy, created: int, *, anthropic: bool) -> dict[str, Any]:
    """Return all models. `anthropic`: for a client that sends `anthropic-version`."""
    models = proxy.admission.models
    if not anthropic:
        return {
            "object": "list",
            "data": [model_document(proxy, model, created) for model in models],
        }
    data = [anthropic_document(proxy, model, created) for model in models]
    if models:
        ends: dict[str, str | None] = {"first_id": models[0], "last_id": models[-1]}
    else:
        ends = {"first_id": None, "last_id": None}
    return {"data": data, "has_more": False, **ends}
