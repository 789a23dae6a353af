"""How an engine is told to run a model, in words that all engines share. None: as the engine itself has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

_SERVER = {"--port": "", "--host": ""}
_OWN_FLAGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        **_SERVER, "--served-model-name": "model", "--max-num-seqs": "slots", "--max-model-len": "context",
        "--tensor-parallel-size": "tp", "-tp": "tp", "--pipeline-parallel-size": "pp", "-pp": "pp",
        "--data-parallel-size": "dp", "-dp": "dp", "--gpu-memory-utilization": "memory_share", "--kv-cache-dtype": "kv",
    },
    "sglang": {
        **_SERVER, "--served-model-name": "model", "--max-running-requests": "slots", "--context-length": "context",
        "--tp-size": "tp", "--tensor-parallel-size": "tp", "--tp": "tp", "--pp-size": "pp", "--dp-size": "dp",
        "--mem-fraction-static": "memory_share", "--kv-cache-dtype": "kv", "--model-path": "checkpoint",
    },
    "llamacpp": {
        **_SERVER, "--alias": "model", "-a": "model", "--parallel": "slots", "-np": "slots", "--ctx-size": "context",
        "-c": "context", "--model": "checkpoint", "-m": "checkpoint", "--cache-type-k": "kv", "--cache-type-v": "kv",
    },
}  # fmt: skip


def own_flag(engine: str, extra: Sequence[str]) -> tuple[str, str] | None:
    """Return the first word of `extra` that is skep's own to say, and what to set instead."""
    for word in extra:
        flag = word.partition("=")[0]
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        key = _OWN_FLAGS.get(engine, {}).get(flag)
        if key is not None:
            return flag, f"set `{key}` instead" if key else "skep chooses it; `engine_port` fixes the port"
    return None


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculative decoding: `depth` tokens are drafted a step, by `model` where the method wants one."""

    method: str  # mtp, ngram, draft, eagle, dflash
    depth: int
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.method}:{self.depth}"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`quant`, `dtype` and `kv` are the engine's own words, passed on as they are: awq_marlin, float16, fp8_e5m2."""

    quant: str | None = None
    dtype: str | None = None
    kv: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1  # replicas inside one engine that share their experts
    ep: bool = False
    memory_share: float | None = None  # of each card
    graphs: bool | None = None
    chunked_prefill: bool | None = None
    batched_tokens: int | None = None  # prefill tokens a step; of llama.cpp, the micro-batch
    batch: int | None = None  # llama.cpp: tokens that one call of the server holds, taken in micro-batches
    threads_batch: int | None = None  # llama.cpp: CPU threads for prompts
    flash_attention: bool | None = None  # llama.cpp
    kv_layout: str | None = None  # llama.cpp: "unified", one cache for all slots, or "split", one each
    prefix_cache: bool | None = None
    draft: Draft | None = None
    p2p: str | None = None  # between cards: "nvlink" only over NVLink, "off" not at all
    custom_all_reduce: bool | None = None
    split: str | None = None  # llama.cpp over several cards: layer, tensor, none
    card_shares: tuple[float, ...] = ()  # of the model, by card, where cards differ
    trust_remote_code: bool = False
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    chat_template: str | None = None  # a file

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def given(self) -> dict[str, Any]:
        """What differs from the engine's own way."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
