"""How an engine is told to run a model, in words that all engines share. None: as the engine itself has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.errors import UserError

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
DRAFT_METHODS = ("mtp", "ngram", "draft", "eagle", "dflash")
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
AtLeast1 = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]


def own_flag(engine: str, extra: Sequence[str]) -> tuple[str, str] | None:
    """Return the first word of `extra` that is skep's own to say, and what to set instead."""
    for word in extra:
        flag = word.partition("=")[0]
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        key = _OWN_FLAGS.get(engine, {}).get(flag)
        if key is not None:
            return flag, f"set `{key}` instead" if key else "skep chooses it; `engine_port` fixes the port"
    return None


class Draft(msgspec.Struct, frozen=True):
    """Speculative decoding: `depth` tokens are drafted a step, by `model` where the method wants one."""

    method: str  # mtp, ngram, draft, eagle, dflash
    depth: int
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.method}:{self.depth}"


def parse_draft(text: str | None, model: str | None, *, key: str) -> Draft:  # noqa: ARG001 - as all that parse
    """Parse `mtp:3`: a method and how many tokens it drafts a step."""
    if text is None:
        raise UserError("`draft_model` needs `speculation`", hint='name the method and depth: "draft:4"')
    method, _, depth = text.strip().lower().partition(":")
    if method not in DRAFT_METHODS or not depth.isdecimal() or not 1 <= int(depth) <= 64:
        hint = f'write it as "mtp:3"; methods: {", ".join(DRAFT_METHODS)}'
        raise UserError(f"`speculation` = `{text}` is not understood", hint=hint)
    return Draft(method, int(depth), model)


class EngineOptions(msgspec.Struct, frozen=True):
    """`quant`, `dtype` and `kv` are the engine's own words, passed on as they are: awq_marlin, float16, fp8_e5m2."""

    quant: str | None = None
    dtype: str | None = None
    kv: str | None = None
    tp: UpTo64 = 1
    pp: UpTo64 = 1
    dp: UpTo64 = 1  # replicas inside one engine that share their experts
    ep: bool = False
    memory_share: Share | None = None  # of each card
    graphs: bool | None = None
    chunked_prefill: bool | None = None
    batched_tokens: AtLeast1 | None = None  # prefill tokens a step; of llama.cpp, the micro-batch
    batch: AtLeast1 | None = None  # llama.cpp: tokens that one call of the server holds, taken in micro-batches
    threads_batch: Annotated[int, Meta(ge=1, le=512)] | None = None  # llama.cpp: CPU threads for prompts
    flash_attention: bool | None = None  # llama.cpp
    # llama.cpp: "unified", one cache for all slots, or "split", one each
    kv_layout: Annotated[str | None, Meta(extra={"one_of": ("unified", "split")})] = None
    prefix_cache: bool | None = None
    draft: Annotated[
        Draft | None, Meta(extra={"key": "speculation", "parse": parse_draft, "beside": "draft_model"})
    ] = None
    # between cards: "nvlink" only over NVLink, "off" not at all
    p2p: Annotated[str | None, Meta(extra={"one_of": ("nvlink", "off")})] = None
    custom_all_reduce: bool | None = None
    # llama.cpp over several cards
    split: Annotated[str | None, Meta(extra={"one_of": ("layer", "tensor", "row", "none")})] = None
    cpu_moe: AtLeast1 | None = None  # llama.cpp: so many layers keep their experts in system memory
    card_shares: tuple[Annotated[float, Meta(gt=0)], ...] = ()  # of the model, by card, where cards differ
    text_only: bool = False  # the vision tower of the checkpoint is not loaded
    trust_remote_code: bool = False
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    chat_template: str | None = None  # a file

    def speed_words(self) -> dict[str, Any]:
        """Return what changes the speed of an engine and it does not tell by itself, where it is set."""
        told = {name: getattr(self, name) for name in ("quant", "kv", "tp", "pp", "ep", "graphs")}
        told["spec"] = str(self.draft) if self.draft else None
        return {name: value for name, value in told.items() if value != getattr(_AS_THE_ENGINE_HAS_IT, name, None)}

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def given(self) -> dict[str, Any]:
        """What differs from the engine's own way."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value != getattr(_USUAL, name)}


_AS_THE_ENGINE_HAS_IT = EngineOptions()


_USUAL = EngineOptions()
