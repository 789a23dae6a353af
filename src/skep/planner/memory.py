"""What one card of a replica holds, term by term, and whether that fits. Arithmetic only.

An engine with a pool (vLLM, SGLang) fills `utilization` of the card: weights and what its trial
run saw first, KV with the rest. What comes after that (graphs, buffers of linear attention, the
CUDA context) must find room in what the budget leaves, so every term says on which side it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, log2

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.planner.setup import Quant, Setup, part_bits, parts_of
from skep.units import GIB, MIB, format_bytes

# What CUDA reports as a card's memory (GiB) against what is printed on the box. "total capacity of
# 15.47 GiB" and the like in torch's out-of-memory messages (8 to 32 GB: 31.38 in vllm pull 51590,
# 23.56 in club-3090 issue 58). From 48 on nobody was quoted: about 99 %, which the H100's
# published pools bear out.
_USABLE_GIB = (
    (0, 0), (8, 7.63), (12, 11.63), (16, 15.47), (24, 23.56), (32, 31.36), (48, 47.4), (80, 79.2),
    (96, 94.97), (141, 139.8), (192, 191.5), (288, 287.5),
)  # fmt: skip
# of unified memory that Metal lets a process wire down by default (recommendedMaxWorkingSetSize)
APPLE_SHARE = 0.75
# DGX Spark reports 121.7 of 128 GiB to CUDA; Strix Halo's GTT limit is set near that by its users
UNIFIED_SHARE = 0.95
# the system and the engine's own host memory, where they share it (a guess)
UNIFIED_RESERVE_BYTES = 6 * GIB

# A process's CUDA context with its kernels, on the card before the engine takes its first
# snapshot: vLLM's budget does not count it. nvidia-smi shows 260 to 430 MiB for an idle torch
# process; within that, fitted on the boundary of one 3090 at 0.97 (runs with one sequence and not
# with two), which leaves 40 MiB to either side.
CONTEXT_BYTES = int(0.40 * GIB)
# Beside the torch allocator, counted by vLLM's profile: cuBLAS and FlashInfer workspaces, sampler
# tables. Fitted on the Qwen3-8B pools of arXiv 2601.09527, in which 0.1 to 0.8 GiB stay
# unexplained otherwise.
ENGINE_BYTES = int(0.30 * GIB)
# NCCL channels and the all-reduce buffers of a card in a group. Inside the budget: fitted on the
# same runs' TP=2 rows.
COMMUNICATION_BYTES = int(0.15 * GIB)
# Outside it: vllm pull 51590 measured 1.37 GiB over budget at TP=8, of which graphs were 62 MiB
# and the context some 0.4: 0.3 GiB for each doubling of the group.
COMMUNICATION_LATE_BYTES = int(0.30 * GIB)

# Sampling sorts the logits of every sequence: FP32 logits, sorted values, indices (4 bytes each).
# Between 256 and 1024 sequences (Qwen3-8B on a 5090, on an H100) memory grows by 1.9 GiB with a
# vocabulary of 152K: 12 to 16 bytes. The low end is taken.
SAMPLER_BYTES = 12
# FP32 logits of every drafted position: "256 x 5 x 151936 x 4 B" in a vLLM out-of-memory report
VERIFY_BYTES = 4

# The profile run encodes pictures of the largest size. Gemma 3: fitted on five runs of arXiv
# 2601.09527 (2.6 to 2.8 GiB on one card, about half on two). Qwen3.5/3.6: vllm issue 52872 (2.0
# GiB beside 0.1 GiB a thousand tokens, 0.7 of it sampling) and club-3090 issue 104 (1.54 GiB in
# all at TP=2).
VISION_SCRATCH_BYTES = {"gemma-3": int(2.7 * GIB)}
VISION_SCRATCH_DEFAULT_BYTES = int(1.3 * GIB)

# CUDA graphs. club-3090 issue 104: 5 piecewise graphs of 64 layers 0.13 GiB; a 27B on one card: 15
# took 0.22; vllm issue 50780: 24 MiB for a full one of a 64-layer hybrid; vLLM logs: 51 + 35 of 28
# to 36 layers took 0.64 to 0.78 GiB.
GRAPH_BASE_BYTES = 85 * MIB
GRAPH_PIECEWISE_BYTES = 9 * MIB / 64  # a layer
GRAPH_FULL_BYTES = 24 * MIB / 64  # a layer

KV_BLOCK_TOKENS = 16  # vLLM's blocks of KV are a multiple of this
CHUNK_TOKENS = 64  # of the chunked scan of linear attention (FLA_CHUNK_SIZE; vllm issue 54775)

# cuBLAS workspace and scratch pools beside the compute buffer
LLAMACPP_ENGINE_BYTES = int(0.15 * GIB)
# without --parallel (llama.cpp pull 16736); that they then share one context is not followed
LARGEST_CAPTURE = 512
KV_POOL = "KV pool"
WINDOW = "sliding-window KV"
STATE = "linear-attention state"
POOL_TERMS = (KV_POOL, WINDOW, STATE)


class EngineDefaults(msgspec.Struct, frozen=True):
    utilization: float
    slots: int
    batched_tokens: int


def usable_bytes(card: Device) -> int:
    """Return the bytes an engine can use: less than the card's nominal size, and less still where
    memory is shared.
    """
    if card.unified_memory:
        share = APPLE_SHARE if card.vendor == "apple" else UNIFIED_SHARE
        return int(card.memory_gib * share * GIB)
    largest, has_largest = _USABLE_GIB[-1]
    if card.memory_gib >= largest:
        return int(card.memory_gib * has_largest / largest * GIB)
    for (below, has), (above, has_above) in pairwise(_USABLE_GIB):
        if below <= card.memory_gib < above:
            beyond = (has_above - has) * (card.memory_gib - below) / (above - below)
            return int((has + beyond) * GIB)
    return 0


def defaults(engine: str, card: Device) -> EngineDefaults:
    """Return what an engine takes by itself.

    vLLM: EngineArgs.get_batch_defaults for its server: 70 GiB and more, except for the A100, have
    larger ones.
    """
    kind = kind_of(engine)
    large = card.memory_gib >= 70 and not card.id.startswith("a100") and not card.unified_memory
    utilization = kind.memory_share or 1.0
    if card.unified_memory and kind.unified_share is not None:
        utilization = kind.unified_share
    return EngineDefaults(utilization, kind.usual_slots[large], kind.usual_batched_tokens[large])


def version_of(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of a version, `0.17.1rc0` → (0, 17, 1); None where there is no number, or
    a date.
    """
    numbers: list[int] = []
    for part in (text or "").lstrip("vV").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    if numbers and numbers[0] < 1000:
        return tuple(numbers)
    return None


def capture_sizes(slots: int, depth: int = 0) -> tuple[int, ...]:
    """Return the batch sizes that graphs are recorded for.

    1, 2, 4, every 8 up to 256, then every 16; at most twice what the slots decode at once, and at
    most 512.
    """
    top = min(2 * max(1, slots) * (1 + depth), LARGEST_CAPTURE)
    sizes = [n for n in (1, 2, 4) if n <= top]
    sizes += range(8, min(top, 256) + 1, 8)
    sizes += range(272, top + 1, 16)
    return tuple(sizes)


def full_sizes(slots: int, depth: int = 0) -> tuple[int, ...]:
    """Return the sizes for which whole decode steps are recorded too: up to the number of slots;
    with speculation most kernels cannot.
    """
    if depth:
        return ()
    return tuple(n for n in capture_sizes(slots) if n <= max(1, slots))


def drafts(setup: Setup) -> int:
    """Return the tokens drafted a step; 0 without speculation."""
    if setup.spec:
        return max(0, setup.spec.depth)
    return 0


def graph_bytes(setup: Setup, card: Device, slots: int) -> int:
    """Return the bytes of CUDA graphs on one card.

    The activations of a recording are shared by all sizes; the rest grows with sizes and layers.
    """
    if not setup.graphs or card.vendor not in ("nvidia", "amd"):
        return 0
    depth = drafts(setup)
    layers = setup.model.layers / setup.layout.pp
    pieces = len(capture_sizes(slots, depth)) * GRAPH_PIECEWISE_BYTES * layers
    full = len(full_sizes(slots, depth)) * GRAPH_FULL_BYTES * layers
    return int(GRAPH_BASE_BYTES + pieces + full)


def graphs_inside(setup: Setup) -> bool:
    """Return whether graphs count against the budget: newer vLLM sizes the KV pool with them in
    mind, older ones record them in what the budget leaves.
    """
    version = version_of(setup.version)
    since = kind_of(setup.engine).graphs_in_budget_since
    return since is not None and version is not None and version[: len(since)] >= since


class Term(msgspec.Struct, frozen=True):
    """`inside`: counts against the engine's budget; else it must fit in what the budget leaves of
    the card.
    """

    name: str
    bytes: int
    how: str
    inside: bool = True


class MemoryPlan(msgspec.Struct, frozen=True):
    """One card.

    `needed_kv_bytes` is what `at_once` sequences of `context` tokens need; the pool may be
    larger.
    """

    card: Device
    usable_bytes: int
    budget_bytes: int
    terms: tuple[Term, ...]
    needed_kv_bytes: int
    context: int
    slots: int
    at_once: int

    def bytes_of(self, name: str) -> int:
        return sum(term.bytes for term in self.terms if term.name == name)

    @property
    def pool_bytes(self) -> int:
        """KV and state together: what the engine reports as its KV cache."""
        return sum(self.bytes_of(name) for name in POOL_TERMS)

    @property
    def outside_bytes(self) -> int:
        return sum(term.bytes for term in self.terms if not term.inside)

    @property
    def over_inside_bytes(self) -> int:
        """By how much the budget is too small; 0 or less: it is large enough."""
        fixed = sum(t.bytes for t in self.terms if t.inside and t.name != KV_POOL)
        return fixed + self.needed_kv_bytes - self.budget_bytes

    @property
    def over_outside_bytes(self) -> int:
        return self.outside_bytes - (self.usable_bytes - self.budget_bytes)

    @property
    def fits(self) -> bool:
        return self.over_inside_bytes <= 0 and self.over_outside_bytes <= 0

    @property
    def margin_bytes(self) -> int:
        """What should be left for memory that was not counted: 1 GiB or 5 % of the card, whichever
        is more.
        """
        return max(GIB, self.usable_bytes // 20)

    @property
    def fits_on_paper_only(self) -> bool:
        """Whether it fits with less than the margin to spare."""
        return -self.over_inside_bytes < self.margin_bytes

    @property
    def largest(self) -> Term:
        """The largest term, KV counted by what is needed of it."""
        return max(
            self.terms, key=lambda t: self.needed_kv_bytes if t.name == KV_POOL else t.bytes
        )


def weights_bytes(
    model: Geometry,
    quant: Quant,
    with_draft: bool = False,
    with_vision: bool = True,
) -> int:
    """Return the bytes of the whole checkpoint on all cards together."""
    return int(weights_bits(model, quant, with_draft, with_vision) / 8)


def weights_bits(
    model: Geometry,
    quant: Quant,
    with_draft: bool = False,
    with_vision: bool = True,
) -> float:
    parts = parts_of(model)
    bits = part_bits(quant, model)
    total = (parts.embedding + parts.head) * bits["ends"] + parts.small * bits["small"]
    total += parts.mlp * bits["mlp"] + parts.experts * bits["experts"]
    if with_draft:
        total += parts.draft * model.mtp_layers * bits["draft"]
    if with_vision:
        total += parts.vision * bits["vision"]
    return total


@lru_cache(maxsize=4096)  # a plan asks for the same ones many times
def memory(
    setup: Setup,
    rig_card: Device,
    *,
    context: int,
    slots: int | None = None,
    at_once: int | None = None,
    vision: bool = True,
) -> MemoryPlan:
    """Return what a card holds with `at_once` sequences of `context` tokens.

    `at_once` None: one with a pool, all slots where KV is taken at start.
    """
    default = defaults(setup.engine, rig_card)
    pooled = kind_of(setup.engine).has_pool
    slots = slots or setup.slots or default.slots
    at_once = (at_once or 1) if pooled else slots
    utilization = setup.utilization or default.utilization
    usable = usable_bytes(rig_card)
    if pooled:
        budget = int(usable * utilization)
    else:
        budget = usable
    sized = replace(setup, context=None, utilization=None)  # for the cache of `_fixed_terms`
    terms = [
        *_fixed_terms(sized, rig_card, slots, vision=vision and setup.vision),
        *_sequence_terms(setup, context, setup.batched_tokens or default.batched_tokens, at_once),
    ]
    needed = int(kv_bytes_per_token(setup) * context) * at_once
    if pooled:
        kv = max(0, budget - sum(term.bytes for term in terms if term.inside))
        how = f"{utilization * 100:.0f} % of the card less the terms above"
    else:
        kv = needed
        how = f"{at_once} slots x {context} tokens x {kv_bytes_per_token(setup):.0f} B"
    terms.append(Term(KV_POOL, kv, how))
    return MemoryPlan(
        card=rig_card,
        usable_bytes=usable,
        budget_bytes=budget,
        terms=tuple(term for term in terms if term.bytes),
        needed_kv_bytes=needed,
        context=context,
        slots=slots,
        at_once=at_once,
    )


def _sequence_terms(
    setup: Setup,
    context: int,
    batched_tokens: int,
    at_once: int,
) -> tuple[Term, Term]:
    """Return what sequences keep beside the KV of every token: windows and states."""
    model = setup.model
    window = window_bytes(setup, context, batched_tokens) * at_once
    window_how = f"{model.sliding_layers} layers keep {model.sliding_window} tokens"
    state = state_bytes(setup) * at_once
    state_how = f"{at_once} sequence(s) x {model.linear_layers} layers"
    if drafts(setup):
        state_how += f" x (1 + {drafts(setup)} drafts)"
    return Term(WINDOW, int(window), window_how), Term(STATE, int(state), state_how)


def kv_bytes_per_token(setup: Setup) -> float:
    """Return the bytes of a token on one card, of the layers that keep every token.

    A head cannot be cut: fewer KV heads than cards are copied.
    """
    model = setup.model
    tp = setup.layout.tp
    pp = setup.layout.pp
    if model.mla_rank:
        # The compressed KV is whole on every card of the group.
        return model.kv_bytes_per_token(setup.kv.bytes) / pp
    heads = model.full_kv_heads or model.kv_heads
    dim = model.full_head_dim or model.head_dim
    # Of the fullest stage.
    layers = ceil(model.full_layers / pp) * (model.kept_layers / max(1, model.full_layers))
    if _drafts_itself(setup):
        layers += 1
    return 2 * layers * max(1, ceil(heads / tp)) * dim * setup.kv.bytes


def window_bytes(setup: Setup, context: int, batched_tokens: int) -> float:
    """Return what sliding layers keep of one sequence on one card.

    While a chunk of the prompt is read, the window and the chunk are both kept.
    """
    model = setup.model
    tp = setup.layout.tp
    pp = setup.layout.pp
    if not model.sliding_layers:
        return 0.0
    kept_tokens = min(context, model.sliding_window + batched_tokens)
    layers = ceil(model.sliding_layers / pp)
    if model.mla_rank:
        return layers * (model.mla_rank + model.mla_rope_dim) * kept_tokens * setup.kv.bytes
    heads = max(1, ceil(model.kv_heads / tp))
    return 2 * layers * heads * model.head_dim * kept_tokens * setup.kv.bytes


class StatePages(msgspec.Struct, frozen=True):
    """How vLLM keeps a state of linear layers: in blocks as large as its blocks of KV."""

    block_tokens: int  # whose KV takes as much of a layer as a state does
    blocks: int  # of one state, as there are more linear layers than others

    @property
    def tokens(self) -> int:
        """Return the tokens whose KV takes as much of the pool as a state."""
        return self.block_tokens * self.blocks


def state_pages(setup: Setup) -> StatePages | None:
    """Return how states are kept in the pool; None: there are none, or no pool. SGLang, which has
    a pool of its own for them, is taken to keep as many.
    """
    model = setup.model
    if not (model.linear_layers and model.full_layers and kind_of(setup.engine).has_pool):
        return None
    blocks = ceil(model.linear_layers / model.full_layers)
    kept_bytes = model.state_bytes / setup.layout.tp / setup.layout.pp
    tokens = kept_bytes / kv_bytes_per_token(setup) / blocks
    return StatePages(ceil(tokens / KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS, blocks)


def state_bytes(setup: Setup) -> float:
    """Return the state of one sequence on one card.

    A drafted token may be refused, so every draft keeps a state to return to.
    """
    return setup.model.state_bytes / setup.layout.tp / setup.layout.pp * (1 + drafts(setup))


def scratch_bytes(setup: Setup, slots: int, batched_tokens: int) -> int:
    """Return the buffers of the chunked scan of linear attention on one card. vLLM's trial run
    does not see them (issue 54775).

    A token keeps its share of the chunk states `h`, `v_new`, `w`, `u` and the FP32 matrix A: 72
    KiB with 48 heads of 128. Where a step may hold prompt and drafted tokens of different
    sequences, both kinds are copied apart and merged.
    """
    model = setup.model
    chunk = CHUNK_TOKENS
    if not model.linear_layers:
        return 0
    k = model.linear_k_dim
    v = model.linear_v_dim
    heads = model.linear_v_heads / setup.layout.tp
    bytes_a_token = heads * (k * v * 2 / chunk + 2 * v * 2 + k * 2 + chunk * 4)
    if slots > 1 and setup.spec is not None:
        bytes_a_token += (
            heads * v * 2
            + (2 * model.linear_k_heads * k + model.linear_v_heads * v) / setup.layout.tp * 2
        )
    return int(bytes_a_token * batched_tokens + min(slots * heads * k * v * 4, 512 * MIB))


def workspace_bytes(setup: Setup, batched_tokens: int) -> int:
    """Return the bytes of the rows that a fused expert kernel writes: 8192 x 8 x (2048 + 3 x 512)
    x 2 B is the 448.06 MB of a known crash.
    """
    model = setup.model
    if not model.is_moe:
        return 0
    rows = batched_tokens * model.experts_per_token
    if setup.layout.ep > 1:
        width: float = model.expert_intermediate
    else:
        width = model.expert_intermediate / setup.layout.tp
    return int(rows * (model.hidden + 3 * width) * 2)


@lru_cache(maxsize=1024)
def _fixed_terms(
    setup: Setup,
    card: Device,
    slots: int,
    *,
    vision: bool,
) -> tuple[Term, ...]:
    """Return what depends neither on the context nor on the share of the card: `setup` has none of
    them.
    """
    terms = [
        *_weight_terms(setup, vision=vision),
        *_working_terms(setup, card, slots, vision=vision),
    ]
    if card.unified_memory:
        terms.append(
            Term("unified-memory reserve", UNIFIED_RESERVE_BYTES, "the system shares this memory")
        )
    if kind_of(setup.engine).has_pool:
        terms += _late_terms(setup, card, slots)
    return tuple(terms)


def _weight_terms(setup: Setup, *, vision: bool) -> list[Term]:
    """Return what the weights take on one card: the model's own, draft layers, a vision tower."""
    model = setup.model
    quant = setup.quant
    layout = setup.layout
    parts = parts_of(model)
    bits = part_bits(quant, model)
    expert_ways = max(layout.tp, layout.ep)
    experts = parts.experts * bits["experts"] / 8 / expert_ways * (1 - setup.ram_share)
    dense_bits = parts.small * bits["small"] + parts.mlp * bits["mlp"]
    layer_bytes = experts + dense_bits / 8 / layout.tp
    stage_layers = ceil(model.layers / layout.pp)
    stage_share = stage_layers / max(1, model.layers)
    embedding = parts.embedding * bits["ends"] / 8
    head = parts.head * bits["ends"] / 8
    end_bytes, note = _ends(setup, embedding, head)
    if layout.cards_each > 1:
        over_cards = f" over {layout.cards_each} cards"
    else:
        over_cards = ""
    how = f"{quant.title}, {quant.bits:g} bits a weight{over_cards}, {note}"
    terms = [Term("weights", int(layer_bytes * stage_share + end_bytes), how)]
    if _drafts_itself(setup):
        dense = (parts.draft - parts.draft_experts) / layout.tp
        layer_params = dense + parts.draft_experts / expert_ways
        size = int(layer_params * model.mtp_layers * bits["draft"] / 8)
        experts_too = ", experts included" if model.is_moe else ""
        how = f"{model.mtp_layers} MTP layer(s) at {bits['draft']:g} bits{experts_too}"
        terms.append(Term("draft layers", size, how))
    if vision and parts.vision and kind_of(setup.engine).has_pool:
        tower = int(parts.vision * bits["vision"] / 8 / layout.tp)
        how = f"{parts.vision / 1e6:.0f}M parameters that the checkpoint carries"
        terms.append(Term("vision tower", tower, how))
    return terms


def _ends(setup: Setup, embedding: float, head: float) -> tuple[float, str]:
    """Return the bytes of embedding and head on the card that has the most of them, and why.

    llama.cpp looks embeddings up in system memory.
    """
    tp = setup.layout.tp
    if not kind_of(setup.engine).has_pool:
        if head:
            return head / tp, "embeddings stay in system memory"
        return embedding / tp, "one matrix for both ends"
    if setup.layout.pp > 1:
        return max(embedding, head) / tp, "one end on the first and one on the last card"
    bits = part_bits(setup.quant, setup.model)["ends"]
    return (embedding + head) / tp, f"both ends at {bits:g} bits"


def _working_terms(
    setup: Setup,
    card: Device,
    slots: int,
    *,
    vision: bool,
) -> list[Term]:
    """Return what the engine's trial run measures before it sizes the pool (SGLang leaves it to
    the rest of the card).
    """
    model = setup.model
    tp = setup.layout.tp
    inside = kind_of(setup.engine).trial_run
    tokens = setup.batched_tokens or defaults(setup.engine, card).batched_tokens
    width = max(
        model.intermediate, model.experts_per_token * model.expert_intermediate, model.hidden
    )
    forward = tokens * (3 * width / tp + 2 * model.hidden) * 2
    if not kind_of(setup.engine).has_pool:
        logits = tokens * model.vocab * 4
        how = f"compute buffer of {tokens} tokens, {model.vocab} logits each"
        engine = Term(
            "engine overhead", CONTEXT_BYTES + LLAMACPP_ENGINE_BYTES, "context and workspaces"
        )
        return [Term("activations", int(forward + logits), how), engine]
    rows = min(slots, tokens)
    sampling = rows * model.vocab * (SAMPLER_BYTES + drafts(setup) * VERIFY_BYTES)
    how = f"{tokens} tokens through an MLP {width} wide, sampling of {rows} x {model.vocab} logits"
    routed = f"{tokens} tokens x {model.experts_per_token} experts"
    terms = [
        Term("activations", int(forward + sampling), how, inside),
        Term("MoE workspace", workspace_bytes(setup, tokens), routed, inside),
        Term("engine overhead", ENGINE_BYTES, "workspaces beside the allocator", inside),
    ]
    if vision and model.vision_params:
        named = (size for name, size in VISION_SCRATCH_BYTES.items() if model.id.startswith(name))
        scratch = next(named, VISION_SCRATCH_DEFAULT_BYTES)
        how = "the trial run encodes pictures of the largest size"
        terms.append(Term("vision scratch", scratch // tp, how, inside))
    if setup.layout.cards_each > 1:
        terms.append(Term("communication buffers", COMMUNICATION_BYTES, "NCCL channels", inside))
    return terms


def _late_terms(setup: Setup, card: Device, slots: int) -> list[Term]:
    """Return what comes before the first snapshot or after the pool was sized."""
    tokens = setup.batched_tokens or defaults(setup.engine, card).batched_tokens
    if card.vendor == "nvidia":
        name = "CUDA context"
    else:
        name = "device context"
    terms = [Term(name, CONTEXT_BYTES, "before the engine's first look at the card", inside=False)]
    graphs = graph_bytes(setup, card, slots)
    if graphs:
        how = f"sizes that follow from {slots} sequences, {setup.model.layers} layers"
        terms.append(Term("CUDA graphs", graphs, how, inside=graphs_inside(setup)))
    scratch = scratch_bytes(setup, slots, tokens)
    terms.append(
        Term("linear-attention scratch", scratch, f"chunked scan of {tokens} tokens", inside=False)
    )
    if setup.layout.tp > 1:
        late = int(COMMUNICATION_LATE_BYTES * log2(setup.layout.tp))
        how = f"all-reduce among {setup.layout.tp} cards"
        terms.append(Term("late communication buffers", late, how, inside=False))
    if _drafts_itself(setup) and setup.model.is_moe and setup.spec is not None:
        # A write-up on 35B-A3B: "depth-3 spec means 3x the MoE expert footprint during dummy_run".
        # One of them is in the weights already.
        draft_bits = part_bits(setup.quant, setup.model)["draft"]
        expert_bytes = parts_of(setup.model).draft_experts * draft_bits / 8
        of_card = int(expert_bytes / max(setup.layout.tp, setup.layout.ep))
        again = of_card * max(0, setup.spec.depth - 1)
        how = f"one set for each of {setup.spec.depth} drafts"
        terms.append(Term("draft experts again", again, how, inside=False))
    return terms


def _drafts_itself(setup: Setup) -> bool:
    return setup.spec is not None and setup.spec.method == "mtp" and setup.model.mtp_layers > 0


# Does it fit, by how much not, and the largest context and number of slots that do

CONTEXT_STEP = 256  # contexts are given in steps of this many tokens
MOST_CONTEXT = 1_048_576  # of a model whose own limit is not known


class FitResult(msgspec.Struct, frozen=True):
    """Whether a setup fits a card, and why not."""

    setup: Setup
    plan: MemoryPlan

    @property
    def over_bytes(self) -> int:
        """0 where it fits."""
        return max(self.plan.over_inside_bytes, 0) + max(self.plan.over_outside_bytes, 0)

    @property
    def fits(self) -> bool:
        return self.plan.fits

    @property
    def sentence(self) -> str:
        """Why it does not fit."""
        setup = self.setup
        plan = self.plan
        slots = f"{plan.slots} slot{'s' if plan.slots > 1 else ''}"
        subject = (
            f"{setup.model.id} {setup.quant.title} with {plan.context} tokens and {slots}, "
            f"{setup.layout},"
        )
        if plan.over_inside_bytes > 0:
            required = format_bytes(plan.budget_bytes + plan.over_inside_bytes)
            return (
                f"{subject} needs {required} a card, {plan.card.id} gives "
                f"{format_bytes(plan.budget_bytes)}"
            )
        spare_bytes = max(0, plan.usable_bytes - plan.budget_bytes)
        out = plan.over_outside_bytes
        late = max((t for t in plan.terms if not t.inside), key=lambda t: t.bytes)
        return (
            f"{subject} needs {format_bytes(plan.outside_bytes)} beside the engine's budget, "
            f"{format_bytes(spare_bytes)} of {plan.card.id} is left: {format_bytes(out)} are "
            f"missing, the largest term is {late.name} ({format_bytes(late.bytes)})"
        )


def fits(
    setup: Setup,
    card: Device,
    *,
    context: int,
    slots: int | None = None,
    at_once: int | None = None,
) -> FitResult:
    """Return whether it fits; with a pool and no `at_once`, whether the engine starts.

    The arguments are those of `memory`.
    """
    return FitResult(setup, memory(setup, card, context=context, slots=slots, at_once=at_once))


def smallest(cards: Sequence[Device]) -> Device:
    """Return the card that sizes the pool of a group: every rank takes as many blocks as the
    poorest can.
    """
    return min(cards, key=usable_bytes)


def kv_capacity_tokens(
    setup: Setup,
    card: Device,
    *,
    context: int,
    slots: int | None = None,
    vision: bool = True,
) -> int:
    """Return how many tokens the pool holds in sequences of that length: what newer vLLM prints as
    its KV cache size.
    """
    plan = memory(setup, card, context=context, slots=slots, vision=vision)
    return int(_held(setup, plan) * context)


def longest_context(
    setup: Setup,
    card: Device,
    slots: int,
    *,
    with_margin: bool = False,
) -> int:
    """Return the longest context with all slots full; 0: none.

    `with_margin`: so that it fits not on paper only.
    """

    def holds(steps: int) -> bool:
        plan = memory(setup, card, context=steps * CONTEXT_STEP, slots=slots, at_once=slots)
        return plan.fits and not (with_margin and plan.fits_on_paper_only)

    return _search((setup.model.max_context or MOST_CONTEXT) // CONTEXT_STEP, holds) * CONTEXT_STEP


def longest_shared_context(
    setup: Setup,
    card: Device,
    slots: int,
    task_tokens: int,
) -> int:
    """Return the longest context of one sequence while every other slot holds a task: slots of a
    pool share it.

    0 where the pool does not hold a task in every slot. The margin is kept where the tasks leave
    it.
    """
    plan = memory(setup, card, context=task_tokens, slots=slots, at_once=slots)
    if not plan.fits:
        return 0
    spare_bytes = -plan.over_inside_bytes
    if not plan.fits_on_paper_only:
        spare_bytes -= plan.margin_bytes
    tokens_a_step = setup.batched_tokens or defaults(setup.engine, card).batched_tokens

    def kept_bytes(context: int) -> float:
        return kv_bytes_per_token(setup) * context + window_bytes(setup, context, tokens_a_step)

    def holds(steps: int) -> bool:
        return kept_bytes(steps * CONTEXT_STEP) - kept_bytes(task_tokens) <= spare_bytes

    max_context = setup.model.max_context or MOST_CONTEXT
    return _search(max_context // CONTEXT_STEP, holds) * CONTEXT_STEP


def _search(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest n of 1 to `most` for which it holds; it holds for all smaller ones."""
    if limit < 1 or not holds(1):
        return 0
    low = 1
    high = limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _held(setup: Setup, plan: MemoryPlan) -> float:
    """Return how many sequences of the plan's context have their KV, window and state in the
    pool.
    """
    if plan.over_outside_bytes > 0:
        return 0.0
    tokens = setup.batched_tokens or defaults(setup.engine, plan.card).batched_tokens
    sequence_bytes = (
        kv_bytes_per_token(setup) * plan.context
        + window_bytes(setup, plan.context, tokens)
        + state_bytes(setup)
    )
    if kind_of(setup.engine).has_pool:
        pool = plan.pool_bytes
    else:
        pool = plan.pool_bytes - plan.over_inside_bytes
    if sequence_bytes > 0:
        return max(0.0, pool / sequence_bytes)
    return float(plan.slots)
