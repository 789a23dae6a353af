"""Rules about cutting a model over cards: heads, widths, experts, links."""

from __future__ import annotations

from skep.catalog.models import Geometry
from skep.planner.findings import (
    DUAL_3090,
    QUAD_3090,
    SWARM,
    Finding,
    capability,
    gguf_engine,
    gpu_engine,
    runs_cuda_kernels,
    used_cards,
    worst_link,
)  # fmt: skip
from skep.planner.memory import usable_bytes, version_of
from skep.planner.setup import Rig, Setup

MOST_RUNGS = 64
GROUP = 128  # of weights that share a scale, in most INT4 checkpoints and block-quantized FP8 ones
MARLIN_TILE = 64


def cards_there(setup: Setup, rig: Rig) -> Finding | None:
    needed, there = setup.layout.cards, len(rig.cards)
    if needed <= there:
        return None
    sentence = f"{setup.layout} needs {needed} cards, the rig has {there}"
    return Finding("cards", "refused", sentence, "arithmetic", f"at most {there} cards in TP x PP x replicas")


def engine_can(setup: Setup, rig: Rig) -> Finding | None:
    """Find what an engine does not support, or has no build for."""
    layout, engine = setup.layout, setup.engine
    vendors = {card.vendor for card in used_cards(setup, rig)}
    if engine == "trtllm" and vendors - {"nvidia"}:
        other = ", ".join(sorted(vendors - {"nvidia"}))
        return Finding(
            "engine",
            "refused",
            f"trtllm runs on NVIDIA only, this rig has {other}",
            "TensorRT-LLM documentation",
            "--engine vllm or --engine llamacpp",
        )
    unfit = next((card for card in used_cards(setup, rig) if not runs_cuda_kernels(card)), None)
    if engine in ("vllm", "sglang") and unfit is not None:
        if unfit.vendor == "apple":
            sentence = f"{engine} does not run on {unfit.id}: its plugin for Apple (vllm-metal) is another program"
            return Finding("engine", "refused", sentence, "github.com/vllm-project/vllm-metal", "--engine llamacpp")
        sentence = f"{engine} does not run on {unfit.id} (SM {unfit.compute_capability:g}): its kernels begin at SM 7.0"
        return Finding("engine", "refused", sentence, "vLLM documentation, GPU requirements", "--engine llamacpp")
    if gguf_engine(setup) and layout.ep > 1:
        return Finding(
            "engine",
            "refused",
            f"{engine} has no expert parallel, EP={layout.ep} was asked for",
            "llama.cpp docs/multi-gpu.md",
            "--ep 1",
        )
    if engine == "ollama" and layout.tp > 1:
        sentence = f"ollama splits by layers only, TP={layout.tp} was asked for"
        return Finding("engine", "refused", sentence, QUAD_3090, f"--pp {layout.tp}, or --engine llamacpp")
    if gguf_engine(setup) and layout.tp > 1:
        if setup.kv.family == "gguf":
            sentence = (
                f"{engine} with TP={layout.tp} (--split-mode tensor) takes no quantized KV, {setup.kv.title} was "
                "asked for"
            )
            return Finding(
                "engine",
                "refused",
                sentence,
                "llama.cpp pull 19378, as LocalAI pull 9560 sums it up",
                "--kv bf16, or layers split with --pp",
            )
        sentence = (
            f"TP={layout.tp} in {engine} is --split-mode tensor: new, marked experimental, and needs flash attention"
        )
        return Finding(
            "engine",
            "depends",
            sentence,
            "llama.cpp docs/multi-gpu.md (pull 22729)",
            f"PP={layout.tp} splits by layers",
        )
    return None


def heads_divide(setup: Setup, rig: Rig) -> Finding | None:
    """Every card gets whole heads: why five cards are no better than four for 32 heads."""
    model, tp = setup.model, setup.layout.tp
    if tp <= 1 or gguf_engine(setup):
        return None
    rungs = valid_rungs(model)
    if tp in rungs:
        return Finding(
            "heads", "fine", f"TP={tp} gives each card {model.heads // tp} of {model.heads} attention heads", QUAD_3090
        )
    what = _what_does_not_divide(model, tp)
    listed = ", ".join(str(n) for n in rungs)
    sentence = f"TP={tp} is refused: {what} of {model.id}; valid are TP={listed}"
    fitting = [n for n in rungs if n <= min(tp, max(1, len(rig.cards)))]
    return Finding("heads", "refused", sentence, QUAD_3090, f"--tp {max(fitting)}" if fitting else None)


def valid_rungs(model: Geometry) -> tuple[int, ...]:
    """The tensor-parallel sizes that divide all heads of the model."""
    return tuple(n for n in range(1, min(model.heads, MOST_RUNGS) + 1) if not _what_does_not_divide(model, n))


def _what_does_not_divide(model: Geometry, tp: int) -> str:
    """KV heads may be fewer than cards if they can be copied evenly. Compressed KV is copied whole."""
    if model.heads % tp:
        return f"{tp} does not divide the {model.heads} attention heads"
    kv_kinds = () if model.mla_rank else (model.kv_heads, model.full_kv_heads or model.kv_heads)
    for kv in kv_kinds:
        if kv and kv % tp and tp % kv:
            return f"{tp} cards cannot share {kv} KV heads evenly"
    for count, kind in ((model.linear_k_heads, "key"), (model.linear_v_heads, "value")):
        if count and count % tp:
            return f"{tp} does not divide the {count} linear-attention {kind} heads"
    return ""


def kv_heads_copied(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    model, tp = setup.model, setup.layout.tp
    if tp <= 1 or gguf_engine(setup) or _what_does_not_divide(model, tp):
        return None
    if model.mla_rank:
        sentence = (
            f"compressed KV of rank {model.mla_rank} is whole on each of the {tp} cards: TP={tp} adds no room for "
            "context"
        )
        return Finding(
            "kv-heads",
            "costs",
            sentence,
            "vLLM's MLA attention keeps the latent on every rank",
            "data-parallel attention",
        )
    kv = model.full_kv_heads or model.kv_heads
    if kv >= tp:
        return Finding(
            "kv-heads",
            "fine",
            f"{kv} KV heads over {tp} cards: KV shrinks with each card",
            "vLLM divides KV heads by TP",
        )
    sentence = (
        f"{kv} KV heads over {tp} cards: each head is kept {tp // kv} times, KV a card shrinks no further than at "
        f"TP={kv}"
    )
    return Finding("kv-heads", "costs", sentence, "vLLM keeps max(1, KV heads / TP) heads a card")


def expert_parallel(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    model, layout = setup.model, setup.layout
    if layout.ep <= 1 or gguf_engine(setup):
        return None
    if not model.is_moe:
        return Finding(
            "expert-parallel",
            "refused",
            f"{model.id} is dense: EP={layout.ep} has no experts to spread",
            "the model's configuration",
            "--ep 1",
        )
    if layout.ep not in (layout.tp, layout.tp * layout.replicas):
        sentence = (
            f"EP={layout.ep} is refused: the expert group is TP x data parallel, here {layout.tp} x {layout.replicas}"
        )
        return Finding(
            "expert-parallel",
            "refused",
            sentence,
            "vLLM documentation, expert parallel deployment",
            f"--ep {layout.tp}",
        )
    if model.experts % layout.ep:
        sentence = (
            f"{model.experts} experts over EP={layout.ep} leave some cards with one more: some engines refuse, "
            "vLLM lets the others wait"
        )
        return Finding("expert-parallel", "depends", sentence, "vLLM fused_moe determine_expert_map", None)
    sentence = (
        f"EP={layout.ep} keeps {model.experts // layout.ep} of {model.experts} experts whole on each card: less "
        "traffic than cutting each"
    )
    return Finding("expert-parallel", "fine", sentence, DUAL_3090)


def widths_divide(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    """A group of weights shares one scale and must not be cut."""
    model, layout, quant = setup.model, setup.layout, setup.quant
    if layout.tp <= 1 or not gpu_engine(setup):
        return None
    whole = model.is_moe and layout.ep > 1
    width = model.intermediate if not model.is_moe else 0 if whole else model.expert_intermediate
    if not width:
        return None
    kind = "expert" if model.is_moe else "MLP"
    if width % layout.tp:
        sentence = f"TP={layout.tp} does not divide the {kind} width {width} of {model.id}"
        return Finding(
            "widths",
            "refused",
            sentence,
            "vLLM divides each layer's width by TP",
            "a smaller --tp" + (f", or --ep {layout.tp}" if model.is_moe else ""),
        )
    part = width // layout.tp
    grouped = quant.family in ("int4", "fp8")
    if not grouped or part % GROUP == 0:
        return None
    remedy = f"--ep {layout.tp} keeps experts whole" if model.is_moe else "a smaller --tp"
    cut = f"TP={layout.tp} cuts the {kind} width {width} into {part}"
    if quant.family == "fp8":
        sentence = f"{cut}, no multiple of {GROUP}: block-quantized FP8 checkpoints are refused, channel-wise ones load"
        return Finding(
            "widths", "depends", sentence, "vLLM fp8.py: `not divisible by weight quantization block_n = 128`", remedy
        )
    if part % MARLIN_TILE == 0 or part % 32 == 0:
        tile = "" if part % MARLIN_TILE == 0 else f" nor of Marlin's {MARLIN_TILE}"
        sentence = (
            f"{cut}, no multiple of {GROUP}{tile}: a checkpoint with groups of {GROUP} is refused, one with "
            "groups of 32 may load"
        )
        return Finding(
            "widths",
            "depends",
            sentence,
            "vLLM awq.py: `The input size is not aligned with the quantized weight shape`",
            remedy,
        )
    sentence = f"{cut}, which no group of 32 or {GROUP} weights divides"
    return Finding(
        "widths",
        "refused",
        sentence,
        "vLLM awq.py: `The input size is not aligned with the quantized weight shape`",
        remedy,
    )


def pipeline(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    model, pp = setup.model, setup.layout.pp
    if pp <= 1:
        return None
    if pp > model.layers:
        return Finding(
            "pipeline",
            "refused",
            f"PP={pp} has more stages than the {model.layers} layers of {model.id}",
            "arithmetic",
            f"--pp {model.layers} or less",
        )
    if setup.spec is not None and setup.spec.method == "mtp" and setup.engine == "vllm":
        sentence = f"vLLM does not start with {setup.spec} and PP={pp}: 0.26 to 0.29 end with an error"
        return Finding("pipeline", "refused", sentence, "vllm issues 52069 and 57755", "--pp 1, or --spec none")
    if setup.spec is not None and setup.engine == "vllm":
        sentence = f"{setup.spec} with PP={pp}: long refused by vLLM, newer ones allow some methods"
        return Finding("pipeline", "depends", sentence, "vllm issue 6911", "TP instead of PP, or no speculation")
    uneven = f", stages of {model.layers // pp} and {-(-model.layers // pp)} layers" if model.layers % pp else ""
    sentence = f"PP={pp} walks the cards one after the other: room for a larger model, no faster single stream{uneven}"
    return Finding("pipeline", "costs", sentence, QUAD_3090)


def mixed_cards(setup: Setup, rig: Rig) -> Finding | None:
    cards = used_cards(setup, rig)
    kinds = {card.id: card for card in cards}
    if len(kinds) < 2 or setup.layout.cards_each < 2:
        return None
    small, slow = min(cards, key=usable_bytes), min(cards, key=lambda card: card.bandwidth_gbs)
    sentence = f"{' and '.join(kinds)} in one group: {small.id} sizes the pool of all, {slow.id} sets their pace"
    return Finding(
        "mixed-cards", "costs", sentence, "vLLM takes the smallest pool of all ranks", "replicas on cards of one kind"
    )


def links(setup: Setup, rig: Rig) -> Finding | None:
    """The write-ups agree that PCIe costs, not on how much: 4 % to more than half."""
    tp = setup.layout.tp
    if tp <= 1 or len(rig.cards) < 2 or setup.engine == "ollama":
        return None
    link = worst_link(setup, rig)
    if link is None:
        sentence = (
            f"TP={tp} over a link nobody described: two replicas beat TP=2 over PCIe for a dense 27B, one writer says"
        )
        return Finding("links", "depends", sentence, DUAL_3090, "say --link nvlink or --link pcie")
    if link.kind == "nvlink":
        return Finding("links", "fine", f"TP={tp} over {link.title or 'NVLink'}, {link.gbs:g} GB/s a direction", SWARM)
    bridged = any(rig.link(a, b) == other and other.kind == "nvlink" for a, b, other in rig.pairs)
    if bridged and tp > 2:
        sentence = (
            f"bridges help within a pair only: TP={tp} crosses pairs over {link.title or 'PCIe'} ({link.gbs:g} "
            "GB/s), 4 % gained in one rig"
        )
        return Finding("links", "costs", sentence, QUAD_3090, "TP=2 inside a pair, one replica a pair")
    how = "without peer access, every all-reduce through host memory" if not link.p2p else "with peer access"
    sentence = (
        f"TP={tp} over {link.title or 'PCIe'} ({link.gbs:g} GB/s) {how}: 7 % gained for a small MoE, a loss "
        "against replicas for a dense 27B"
    )
    return Finding("links", "costs", sentence, f"{SWARM}; {DUAL_3090}", "replicas where the model fits one card")


def custom_all_reduce(setup: Setup, rig: Rig) -> Finding | None:
    card = next((c for c in used_cards(setup, rig) if capability(c) == 8.6), None)
    if setup.engine != "vllm" or setup.layout.tp <= 1 or card is None or not setup.graphs:
        return None
    sentence = (
        f"custom all-reduce on {card.id} (SM 8.6) crashed vLLM 0.17 during graph capture and is seen working in "
        "logs of 2026: "
        f"TP={setup.layout.tp}"
    )
    return Finding(
        "custom-all-reduce",
        "depends",
        sentence,
        f"{SWARM}; club-3090 issue 434",
        "--disable-custom-all-reduce if it crashes",
    )


def dense_without_nvlink(setup: Setup, rig: Rig) -> Finding | None:
    link = worst_link(setup, rig)
    version = version_of(setup.version)
    if setup.engine != "vllm" or setup.layout.tp <= 1 or setup.model.is_moe or link is None or link.kind == "nvlink":
        return None
    if version is None or version[:2] != (0, 17):
        return None
    sentence = (
        f"vLLM {setup.version} died with SIGBUS while loading a dense model, TP={setup.layout.tp}, NVLink "
        "disabled; MoE ran"
    )
    return Finding("sigbus", "depends", sentence, SWARM, "another version of vLLM, or one card")
