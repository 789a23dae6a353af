"""Ollama behind the engine port: a server of one's own on its own port, told by variables (envconfig/config.go).

It serves what is in the user's store under the names that are there; a copy under another name would change the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from skep.engines.adapter import Adapter, Known, Refusal, common_refusals, unsupported_options
from skep.engines.base import Launch
from skep.errors import UserError
from skep.wire.heads import Origin

KV_TYPES = ("f16", "q8_0", "q4_0")  # docs/faq.mdx
_REGISTRY = "registry.ollama.ai"
_ASK = "Ollama takes it from the model's Modelfile or from each request"
_NOT = {
    "quant": ("comes with the tag", "choose another tag, as `llama3.1:8b-instruct-q8_0`"),
    "dtype": ("comes with the tag", "choose another tag"),
    "tp": ("cannot be: Ollama splits a model by layers", "use pp, or llamacpp with tp"),
    "dp": ("cannot be: Ollama has no data parallelism", "start as many replicas"),
    "ep": ("cannot be: Ollama has no expert parallelism", "leave it out"),
    "memory_share": ("cannot be", "leave it out; OLLAMA_GPU_OVERHEAD (bytes) in `env` keeps room on a card"),
    "graphs": ("cannot be told to Ollama", "leave it out, or use llamacpp"),
    "chunked_prefill": ("cannot be told to Ollama", "leave it out"),
    "batched_tokens": ("cannot be told to Ollama's server", f"{_ASK}: num_batch"),
    "batch": ("cannot be told to Ollama's server", f"{_ASK}: num_batch"),
    "threads_batch": ("cannot be told to Ollama's server", f"{_ASK}: num_thread"),
    "flash_attention": ("cannot be told to Ollama", "leave it out; OLLAMA_FLASH_ATTENTION in `env` says it"),
    "kv_layout": ("cannot be told to Ollama", "leave it out, or use llamacpp"),
    "prefix_cache": ("cannot be told to Ollama", "leave it out, or use llamacpp"),
    "draft": ("cannot be: Ollama has no setting for it", "leave it out, or use llamacpp"),
    "p2p": ("cannot be told to Ollama", "leave it out"),
    "custom_all_reduce": ("is of vLLM and SGLang", "leave it out"),
    "split": ("cannot be told to Ollama", "use pp, or llamacpp"),
    "card_shares": ("cannot be told to Ollama", "leave it out, or use llamacpp"),
    "trust_remote_code": ("means nothing here", "leave it out"),
    "reasoning_parser": ("cannot be told to Ollama", "leave it out: it knows its models"),
    "tool_parser": ("cannot be told to Ollama", "leave it out: it knows its models"),
    "chat_template": ("cannot be told to Ollama's server", f"{_ASK}: TEMPLATE"),
}


class Ollama(Adapter):
    """Nobody can ask it how many slots are busy, so that the bound for a slot in release is short."""

    name = "ollama"
    health_path = "/api/version"
    release_bound_s = 5.0
    keyed_by = ()  # it answers everybody who reaches it

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        options = launch.options
        yield from common_refusals(launch)
        yield from unsupported_options(options, _NOT)
        if options.kv is not None and options.kv not in KV_TYPES:
            yield f'kv = "{options.kv}" is not known to Ollama', f"one of {', '.join(KV_TYPES)}"
        if launch.extra:
            yield f"`ollama serve` has no flags, but extra is `{' '.join(launch.extra)}`", "set variables with `env`"
        if launch.checkpoint is not None and launch.checkpoint != launch.model:
            yield (
                f"`{launch.checkpoint}` cannot be served as `{launch.model}`: Ollama knows a model by its tag",
                f"serve it as `{launch.checkpoint}`, and make `{launch.model}` an alias of that",
            )

    def check_weights(self, launch: Launch) -> None:
        store = store_of(launch)
        if not (store / "manifests" / manifest_of(launch.model)).is_file():
            hint = (
                f"run `ollama pull {launch.model}`; where a service of Ollama's has it, set OLLAMA_MODELS to its store"
            )
            raise UserError(f"`{launch.model}` is not in Ollama's store {store}", hint=hint)

    def arguments(self, launch: Launch, known: Known = None) -> list[str]:  # noqa: ARG002 - all is told by variables
        return []

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return one model, kept loaded; a second server on the store deletes nothing in it and asks no cloud."""
        options = launch.options
        found = {
            "OLLAMA_HOST": Origin(launch.host, launch.port).authority.decode(),
            "OLLAMA_NUM_PARALLEL": str(launch.slots),
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_NOPRUNE": "1",
            "OLLAMA_NO_CLOUD": "1",
        }
        if launch.context_tokens:
            found["OLLAMA_CONTEXT_LENGTH"] = str(launch.context_tokens)
        if options.kv is not None:
            found |= {"OLLAMA_KV_CACHE_TYPE": options.kv, "OLLAMA_FLASH_ATTENTION": "1"}
        if options.pp > 1:
            found["OLLAMA_SCHED_SPREAD"] = "1"
        return found


def store_of(launch: Launch) -> Path:
    given = dict(launch.env).get("OLLAMA_MODELS") or os.environ.get("OLLAMA_MODELS")
    return Path(given) if given else Path.home() / ".ollama" / "models"


def manifest_of(tag: str) -> Path:
    """`gemma3` is registry.ollama.ai/library/gemma3:latest; `hf.co/someone/name:Q4_K_M` is whole."""
    name, _, version = tag.partition(":")
    parts = name.split("/")
    host = parts.pop(0) if len(parts) == 3 else _REGISTRY
    owner = parts.pop(0) if len(parts) == 2 else "library"
    return Path(host, owner, *parts, version or "latest")
