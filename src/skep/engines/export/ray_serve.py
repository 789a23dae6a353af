"""A configuration of Ray Serve LLM (`serve deploy`, `serve run`): vLLM's replicas as deployments of Ray. Pure text.

Field names as in Ray 2.60's `ServeDeploySchema` and `LLMConfig`; `skep.cluster.serve_schema` holds what is written here
against the schema of the Ray that is installed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skep.engines.base import Launch
from skep.engines.export.engine_kwargs import Keywords, keywords_of
from skep.engines.export.recipe import HERE, Recipe, environment, file_name, head, native_words, wants
from skep.engines.export.words import Path, comments, wrapped
from skep.engines.export.yaml_text import yaml_text
from skep.errors import UserError

RAY_VERSION = "2.60.0"
ITS_VLLM = "0.29.0"  # as the package `ray[llm]` of that version asks for
BUILDER = "ray.serve.llm:build_openai_app"
RANKS_BUILDER = "ray.serve.llm:build_dp_openai_app"  # data parallelism: a group of replicas that start and end together
# As Ray names a node's cards, where its LLM configuration takes the name. Others have none, a GeForce among them.
ACCELERATORS = {
    "v100-16gb": "V100", "v100-32gb": "V100", "v100-pcie-32gb": "V100", "p100-16gb": "P100", "t4": "T4",
    "a10g": "A10G", "a100-40gb": "A100", "a100-pcie": "A100", "a100-sxm": "A100", "l4": "L4", "l40s": "L40S",
    "h100-nvl": "H100", "h100-pcie": "H100", "h100-sxm": "H100", "h200": "H200", "h20": "H20", "b200": "B200",
    "b300": "B300", "gb200": "GB200", "rtx-pro-6000": "RTX-PRO-6000", "rtx-pro-6000-max-q": "RTX-PRO-6000",
    "rtx-pro-6000-server": "RTX-PRO-6000", "mi100": "AMD-Instinct-MI100", "mi210": "AMD-Instinct-MI210",
    "mi250x": "AMD-Instinct-MI250X", "mi300x": "AMD-Instinct-MI300X-OAM", "mi325x": "AMD-Instinct-MI325X-OAM",
    "mi355x": "AMD-Instinct-MI355X-OAM",
}  # fmt: skip


def ray_serve(recipe: Recipe) -> str:
    document = serve_document(recipe)
    lines = [
        *head(recipe, "ray-serve"),
        f"Start, on a node of the cluster, with `pip install 'ray[serve,llm]=={RAY_VERSION}'` on each:",
        "  RAY_USAGE_STATS_ENABLED=0 serve run FILE      or, to a cluster that serves already:  serve deploy FILE",
        *wants(recipe, contained=False),
        *notes_of(recipe),
        f"Closed by default: each node's proxy listens on {HERE}. For clients on other machines write the address that",
        "they reach in its place; Ray Serve asks nobody for a key.",
    ]
    return comments(lines) + yaml_text(document)


def serve_document(recipe: Recipe) -> dict[str, Any]:
    return {
        "http_options": {"host": HERE, "port": recipe.port},
        "applications": applications_of(recipe),
    }


def applications_of(recipe: Recipe, *, source: str | None = None) -> list[dict[str, Any]]:
    """One application with one model. `source`: where the weights lie, if not where the preset says."""
    check(recipe)
    config = _llm_config(recipe, source)
    ranks = recipe.first.options.dp > 1
    return [
        {
            "name": file_name(recipe.name),
            "route_prefix": "/",
            "import_path": RANKS_BUILDER if ranks else BUILDER,
            "args": {"llm_config": config} if ranks else {"llm_configs": [config]},
        }
    ]


def check(recipe: Recipe) -> None:
    engine = recipe.first.engine
    if engine != "vllm":
        hint = f"`skep up {recipe.name} --cluster auto` runs {engine} on a Ray cluster; or choose a preset of vllm"
        raise UserError(f"`{recipe.name}` runs {engine}; Ray Serve LLM runs vLLM", hint=hint)
    if not recipe.vendor:
        raise UserError(f"`{recipe.name}` runs on the CPU; Ray Serve LLM is written for cards", hint="use --as docker")


def notes_of(recipe: Recipe) -> list[str]:
    """What does not carry over, and what is to be known."""
    first, version = recipe.first, recipe.engine_version
    said = [f"ray[llm] {RAY_VERSION} brings vLLM {ITS_VLLM}" + (f"; measured was {version}" if version else "")]
    lost = [
        "the gateway's queue (by priority, agents in turn; Serve takes requests as they come)",
        "its keys and quotas",
        "429 with Retry-After",
        "a conversation back to the replica that holds its prefix (`request_router_config` has Ray's own way)",
        "slots given back only when the engine says so",
        "remedies for an engine that does not start",
    ]
    if first.reserve:
        lost.insert(0, f"`reserve` ({first.reserve} of a replica's slots for interactive requests only)")
    said.append(f"Does not carry over: {', '.join(lost)}")
    said += [f"Does not carry over: {flag}" for flag in keywords(first).left]
    if recipe.container is not None:
        said.append(f"Does not carry over: the preset's image `{recipe.container.image}`, its mounts and steps")
    if recipe.card is None or recipe.card.id not in ACCELERATORS:
        which = recipe.card.title if recipe.card else "these cards"
        said.append(f"`accelerator_type` is left out: Ray Serve LLM has no name for {which}")
        said.append("In a cluster with other cards, add a resource that only these nodes have to `bundle_per_worker`")
    if first.options.chat_template:
        said.append(f"`{first.options.chat_template}` is a file that every node must have")
    if (first.checkpoint or "").startswith("~"):
        said.append(f"`{first.checkpoint}`: write the whole path, the same on every node; nothing fills in `~`")
    return [line for one in said for line in wrapped(one)]


def keywords(launch: Launch) -> Keywords:
    """The adapter's command line, read as vLLM would."""
    words = [word.text if isinstance(word, Path) else word for word in native_words(launch)]
    return keywords_of(words[words.index("--served-model-name") :])


def _llm_config(recipe: Recipe, source: str | None) -> dict[str, Any]:
    first = recipe.first
    said = keywords(first).values
    placed = replace(first, gpus=(), checkpoint=source or first.checkpoint)
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": first.model, "model_source": source or first.checkpoint or first.model},
        "engine_kwargs": said,
        "deployment_config": _deployment(recipe),
    }
    if recipe.card is not None and recipe.card.id in ACCELERATORS:
        config["accelerator_type"] = ACCELERATORS[recipe.card.id]
    config |= _placement(recipe)
    if said.get("disable_log_stats"):
        config["log_engine_metrics"] = False  # Ray refuses the two together
    variables = environment(placed, recipe.vendor)
    return config | ({"runtime_env": {"env_vars": variables}} if variables else {})


def _deployment(recipe: Recipe) -> dict[str, Any]:
    """Serve holds back what is beyond the slots, as skep's gateway does; of data-parallel ranks each has its part."""
    first = recipe.first
    return {"num_replicas": len(recipe.launches), "max_ongoing_requests": -(-first.slots // first.options.dp)}


def _placement(recipe: Recipe) -> dict[str, Any]:
    """All cards of a replica on one node, as measured. Ray places ranks of data parallelism by a rule of its own."""
    options = recipe.first.options
    if options.dp > 1 or options.cards == 1:
        return {}
    return {"placement_group_config": {"bundle_per_worker": {"GPU": 1}, "strategy": "STRICT_PACK"}}
