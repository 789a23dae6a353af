"""A RayService manifest for KubeRay (ray.io/v1): the Serve configuration, and pods with the cards it wants. Pure text.

Held against KubeRay's CRD of August 2026 by hand; the configuration inside is checked as that of `ray-serve` is.
"""

from __future__ import annotations

import re
from typing import Any

from skep.engines.export.container import CHECKPOINT_INSIDE, MODELS_INSIDE
from skep.engines.export.ray_serve import RAY_VERSION, applications_of, check, notes_of
from skep.engines.export.recipe import Recipe, head, on_hub, wants
from skep.engines.export.words import comments, wrapped
from skep.engines.export.yaml_text import Literal, yaml_text
from skep.units import GIB, format_bytes

IMAGE = f"rayproject/ray-llm:{RAY_VERSION}-py312-cu130"
LONGEST_NAME = 47  # KubeRay makes longer ones of it, within Kubernetes' 63
PROCESS_GIB = 6  # of host memory, a vLLM worker with its share of server and scheduler: a rule of thumb, not measured
RAY_GIB = 2  # raylet and agents of a pod, likewise
HEAD_CPUS, HEAD_GIB = 2, 8
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/xe"}
PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000}
SECRET = "hf-token"  # noqa: S105 - the name of a Secret
QUIET = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]


def kuberay(recipe: Recipe) -> str:
    document = manifest(recipe)
    name = document["metadata"]["name"]
    lines = [
        *head(recipe, "kuberay", endpoint=f"http://{name}-serve-svc:8000"),
        "Start, where KubeRay's operator runs: kubectl apply -f FILE",
        *wants(recipe, contained=False),
        *notes_of(recipe),
        *(line for said in _notes(recipe, name) for line in wrapped(said)),
    ]
    return comments(lines) + yaml_text(document)


def kuberay_document(recipe: Recipe) -> dict[str, Any]:
    """What Ray itself reads of the manifest (`serveConfigV2`). Serve listens as KubeRay's probes and services ask."""
    return {"applications": applications_of(recipe, source=_source(recipe))}


def manifest(recipe: Recipe) -> dict[str, Any]:
    check(recipe)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": service_name(recipe.name)},
        "spec": {
            "serveConfigV2": Literal(yaml_text(kuberay_document(recipe))),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "headGroupSpec": _head(),
                "workerGroupSpecs": [_workers(recipe)],
            },
        },
    }


def service_name(name: str) -> str:
    """A DNS label that begins with a letter."""
    label = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "model"
    label = label if label[0].isalpha() else f"m-{label}"
    return label[:LONGEST_NAME].rstrip("-")


def _head() -> dict[str, Any]:
    ports = [{"containerPort": port, "name": name} for name, port in PORTS.items()]
    container = {"name": "ray-head", "image": IMAGE, "env": QUIET, "ports": ports}
    return {
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},  # no replica on the head
        "template": {"spec": {"containers": [container | _resources(HEAD_CPUS, HEAD_GIB)]}},
    }


def _workers(recipe: Recipe) -> dict[str, Any]:
    cards, many = recipe.first.options.cards, len(recipe.launches)
    card = RESOURCES.get(recipe.vendor, RESOURCES["nvidia"])
    container: dict[str, Any] = {"name": "ray-worker", "image": IMAGE, "env": [*QUIET, *_token(recipe)]}
    container |= _resources(_cpus(recipe), _memory_gib(recipe), {card: str(cards)})
    spec: dict[str, Any] = {"containers": [container]}
    place = _mounted_at(recipe)
    if place is not None:
        container["volumeMounts"] = [{"name": "weights", "mountPath": place, "readOnly": True}]
        claim = {"claimName": _claim(recipe), "readOnly": True}
        spec["volumes"] = [{"name": "weights", "persistentVolumeClaim": claim}]
    spec["tolerations"] = [{"key": card, "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "groupName": "gpu-group",
        "replicas": many,
        "minReplicas": many,
        "maxReplicas": many,
        "rayStartParams": {"num-gpus": str(cards)},
        "template": {"spec": spec},
    }


def _resources(cpus: int, memory_gib: int, cards: dict[str, str] | None = None) -> dict[str, Any]:
    """The same asked for and allowed: a pod that Kubernetes evicts last."""
    amounts = {"cpu": str(cpus), "memory": f"{memory_gib}Gi", **(cards or {})}
    return {"resources": {"requests": amounts, "limits": amounts}}


def _cpus(recipe: Recipe) -> int:
    """Serve's entrance, the replica, its scheduler, and a process a card."""
    return 3 + recipe.first.options.cards


def _memory_gib(recipe: Recipe) -> int:
    return -(-_weights_bytes(recipe) // GIB) + PROCESS_GIB * recipe.first.options.cards + RAY_GIB


def _weights_bytes(recipe: Recipe) -> int:
    """Where the planner does not know them: what the cards hold, for the weights are no larger."""
    if recipe.weights_bytes is not None:
        return recipe.weights_bytes
    return int(max(card.memory_gib for card in recipe.devices) * GIB) * recipe.first.options.cards


def _memory_words(recipe: Recipe) -> str:
    known = "as the planner has them" if recipe.weights_bytes is not None else "no more than the cards hold"
    weights, cards = format_bytes(_weights_bytes(recipe)), recipe.first.options.cards
    return f"{weights} of weights ({known}) + {PROCESS_GIB} GiB x {cards} for processes + {RAY_GIB} GiB for Ray"


def _notes(recipe: Recipe, name: str) -> list[str]:
    said = [
        f"A worker's memory: {_memory_words(recipe)}; the GiB for processes and Ray are a rule of thumb, not measured",
        f"The tag of `{IMAGE}` follows those of earlier releases: see that it is there",
        "Other kinds of cards in the cluster: give the worker group's pods a nodeSelector",
        f"Not closed: {name}-serve-svc and Ray's dashboard ask for no key; a NetworkPolicy says who reaches them",
    ]
    if recipe.vendor != "nvidia":
        said.append("The image is built for NVIDIA's cards: put one for yours in its place")
    if _mounted_at(recipe) is not None:
        what = recipe.first.checkpoint or recipe.first.model
        said.append(f"Weights: a PersistentVolumeClaim `{_claim(recipe)}` that holds `{what}`, readable on every node")
    else:
        said.append(
            f"Weights: every pod pulls them from the hub, with `hf_token` of a Secret `{SECRET}` where there is one"
        )
        said.append("A volume at /home/ray/.cache/huggingface keeps what was pulled")
    return said


def _token(recipe: Recipe) -> list[dict[str, Any]]:
    if _mounted_at(recipe) is not None:
        return []
    chosen = {"name": SECRET, "key": "hf_token", "optional": True}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": chosen}}]


def _mounted_at(recipe: Recipe) -> str | None:
    checkpoint = recipe.first.checkpoint or ""
    if on_hub(checkpoint):
        return None
    return MODELS_INSIDE if checkpoint.endswith(".gguf") else CHECKPOINT_INSIDE


def _source(recipe: Recipe) -> str | None:
    place, checkpoint = _mounted_at(recipe), recipe.first.checkpoint or ""
    return f"{place}/{checkpoint.rpartition('/')[2]}" if place == MODELS_INSIDE else place


def _claim(recipe: Recipe) -> str:
    return f"{service_name(recipe.name)}-weights"
