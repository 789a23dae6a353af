"""Ollama behind the engine port: a server of one's own on its own port, told by variables
(envconfig/config.go).

It serves what is in the user's store under the names that are there; a copy under another name
would change the store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from skep.engines.adapter import Adapter, KnownFlags, Refusal, common_refusals
from skep.engines.base import Launch
from skep.errors import UserError
from skep.wire.heads import Origin

KV_TYPES = ("f16", "q8_0", "q4_0")  # docs/faq.mdx
_REGISTRY = "registry.ollama.ai"


class Ollama(Adapter):
    """Nobody can ask it how many slots are busy,
    so that the bound for a slot in release is short.
    """

    name = "ollama"
    health_path = "/api/version"
    release_bound_s = 5.0
    keyed_by = ()  # it answers everybody who reaches it

    def refusals(self, launch: Launch) -> Iterable[Refusal]:
        options = launch.options
        yield from common_refusals(launch)
        if options.kv is not None and options.kv not in KV_TYPES:
            yield f'kv = "{options.kv}" is not known to Ollama', f"one of {', '.join(KV_TYPES)}"
        if launch.extra:
            yield (
                f"`ollama serve` has no flags, but extra is `{' '.join(launch.extra)}`",
                "set variables with `env`",
            )
        if launch.checkpoint is not None and launch.checkpoint != launch.model:
            text = (
                f"`{launch.checkpoint}` cannot be served as `{launch.model}`: Ollama knows a "
                "model by its tag"
            )
            yield (
                text,
                f"serve it as `{launch.checkpoint}`, and make `{launch.model}` an alias of that",
            )

    def check_weights(self, launch: Launch) -> None:
        given = dict(launch.env).get("OLLAMA_MODELS") or os.environ.get("OLLAMA_MODELS")
        if given:
            store = Path(given)
        else:
            store = Path.home() / ".ollama" / "models"
        if not (store / "manifests" / manifest_of(launch.model)).is_file():
            elsewhere = "if an Ollama service has it, set OLLAMA_MODELS to its store"
            hint = f"run `ollama pull {launch.model}`; {elsewhere}"
            raise UserError(f"`{launch.model}` is not in Ollama's store {store}", hint=hint)

    def arguments(
        self,
        launch: Launch,  # noqa: ARG002
        known_flags: KnownFlags = None,  # noqa: ARG002
    ) -> list[str]:
        """Return no words: Ollama is told everything by variables."""
        return []

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return one model, kept loaded; a second server on the store deletes nothing in it and
        asks no cloud.
        """
        options = launch.options
        variables = {"OLLAMA_HOST": Origin(launch.host, launch.port).authority.decode()}
        variables |= {"OLLAMA_NUM_PARALLEL": str(launch.slots), "OLLAMA_MAX_LOADED_MODELS": "1"}
        variables |= {"OLLAMA_KEEP_ALIVE": "-1", "OLLAMA_NOPRUNE": "1", "OLLAMA_NO_CLOUD": "1"}
        if launch.context_tokens:
            variables["OLLAMA_CONTEXT_LENGTH"] = str(launch.context_tokens)
        if options.kv is not None:
            variables |= {"OLLAMA_KV_CACHE_TYPE": options.kv, "OLLAMA_FLASH_ATTENTION": "1"}
        if options.pp > 1:
            variables["OLLAMA_SCHED_SPREAD"] = "1"
        return variables


def manifest_of(tag: str) -> Path:
    """Return the path of a tag's manifest. `gemma3` is registry.ollama.ai/library/gemma3:latest;
    `hf.co/someone/name:Q4_K_M` has all its parts.
    """
    name, _, version = tag.partition(":")
    parts = name.split("/")
    host = parts.pop(0) if len(parts) == 3 else _REGISTRY
    owner = parts.pop(0) if len(parts) == 2 else "library"
    return Path(host, owner, *parts, version or "latest")
