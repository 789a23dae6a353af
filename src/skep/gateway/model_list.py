"""What `/v1/models` tells of the models: in OpenAI's shape with what agents' clients read of it,
or in Anthropic's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from skep.config.gateway_messages import ReplicaSpec
from skep.gateway.proxy import Proxy

_SEVERITY = ("ok", "unknown", "warning")


def model_document(proxy: Proxy, model: str, created: int = 0) -> dict[str, Any]:
    """`created`: when this gateway began, in unix time."""
    specs = [replica.spec for replica in proxy.admission.table() if replica.spec.model == model]
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
    if aliases := [alias for alias, meant in proxy.policy.aliases.items() if meant == model]:
        document["aliases"] = aliases
    document["skep"] = serving_document(proxy, model, specs, context)
    return document


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
    if specs and specs[0].setup and all(spec.setup == specs[0].setup for spec in specs):
        # Without keys only this machine's own programs ask, and `skep calibrate` reads the
        # checkpoint's files.
        serving["setup"] = without_folders(specs[0].setup) if proxy.guarded else specs[0].setup
    if specs and specs[0].preset and all(spec.preset == specs[0].preset for spec in specs):
        serving["preset"] = specs[0].preset
    if checks := worst_checks(specs):
        serving["checks"] = checks
    if (state := proxy.unloaded.states.get(model)) is not None:
        serving["state"] = state
    return serving


def shared_context(specs: Iterable[ReplicaSpec]) -> int | None:
    """Return the tokens that any of the replicas takes; None: one of them does not tell."""
    contexts = [spec.context for spec in specs]
    known_contexts = [context for context in contexts if context]
    if known_contexts and len(known_contexts) == len(contexts):
        return min(known_contexts)
    return None


def modalities_of(specs: Iterable[ReplicaSpec]) -> list[str]:
    """Return what all replicas read."""
    read = [spec.modalities for spec in specs]
    if read:
        return [kind for kind in read[0] if all(kind in others for others in read)]
    return ["text"]


def without_folders(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return it with the names of files alone: clients are not told where they lie on this
    machine.
    """
    return {
        name: value.rstrip("/").rpartition("/")[2]
        if isinstance(value, str) and value.startswith(("/", "~"))
        else value
        for name, value in setup.items()
    }


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
    context = shared_context(
        replica.spec for replica in proxy.admission.table() if replica.spec.model == model
    )
    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
    document = {"type": "model", "id": model, "display_name": model, "created_at": created_at}
    if context is None:
        return document
    return {**document, "max_input_tokens": context}


def model_list(proxy: Proxy, created: int, *, anthropic: bool) -> dict[str, Any]:
    """Return all models. `anthropic`: for who sends `anthropic-version`."""
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
