"""How long one forward pass takes: bytes over bandwidth, FLOPs over the tensor cores, launches, all-reduces.

A pass decodes some sequences and carries a piece of somebody's prompt beside them, as continuous batching does.
"""

from __future__ import annotations

from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.catalog.geometry import Geometry
from skep.planner.constants import Constants
from skep.planner.links import all_reduce
from skep.planner.parts import part_bits, parts_of
from skep.planner.quants import KvType, Quant
from skep.planner.setup import Layout, Link, Speculation

_SHARP = 2.5  # how abruptly a pass turns from bandwidth-bound to compute-bound
_DRAFT_LAYERS = {"mtp": 1.0, "eagle": 1.0, "dflash": 5.0, "draft": 0.0, "ngram": 0.0}
_DATACENTER = {"volta", "hopper", "blackwell-dc", "cdna3", "cdna2", "cdna"}


@dataclass(frozen=True, slots=True)
class StepTerm:
    name: str
    seconds: float
    how: str


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a pass as a function of what is in the batch, everything else multiplied out beforehand."""

    dense_s: float  # reading what every token needs
    head_s: float
    experts_s: float  # reading all experts of all layers
    experts: int
    experts_per_token: int
    routing_skew: float
    dense_flop_s: float  # computing it for one token
    head_flop_s: float
    experts_flop_s: float
    kv_s: float  # reading one token of KV of one sequence
    window_s: float  # the same in sliding layers, up to `window` tokens
    window: int
    attention_flop_s: float  # one prompt token against one earlier token
    state_s: float  # reading and writing one sequence's state
    fixed_s: float
    sequence_s: float
    comm_fixed_s: float
    comm_token_s: float
    depth: int
    accepted: float  # tokens a step brings a sequence
    draft_s: float  # drafting for a batch, bytes and launches
    draft_token_s: float  # computing it for one sequence
    slow_s: float  # times everything: what a calibration or an engine multiplies a step by
    hop_s: float
    batch_s: float  # llama.cpp's small batches: more for every further token, up to 16
    half_gain_sequences: float  # llama.cpp: speculation stops paying as sequences grow

    def seconds(self, sequences: int, context: float, prompt: float = 0.0, prompt_context: float = 0.0) -> float:
        """`context`: KV tokens of all decoding sequences; `prompt_context`: mean tokens before the piece of prompt."""
        per_sequence = 1 + self.depth
        tokens = sequences * per_sequence + prompt
        if tokens <= 0:
            return 0.0
        read, compute = self.dense_s, self.dense_flop_s * tokens
        seconds = _smooth(read, compute)
        if self.experts:
            share = 1.0 - (1.0 - self.experts_per_token / self.experts) ** (tokens**self.routing_skew)
            seconds += _smooth(self.experts_s * share, self.experts_flop_s * tokens)
        seconds += _smooth(self.head_s, self.head_flop_s * max(1.0, sequences * per_sequence))
        seconds += self.kv_s * context + self.state_s * (sequences + (1 if prompt else 0))
        if self.window and sequences:
            seconds += self.window_s * sequences * min(self.window, context / sequences)
        if prompt:
            mean = prompt_context + prompt / 2
            full = self.attention_flop_s * prompt * mean
            seconds += full + self.kv_s * prompt_context
        if self.batch_s and tokens > 1:
            seconds += self.batch_s * (min(tokens, 16.0) - 1.0)
        seconds += self.fixed_s + self.sequence_s * sequences + self.hop_s
        seconds += self.comm_fixed_s + self.comm_token_s * tokens
        if self.depth and sequences:
            seconds += self.draft_s + self.draft_token_s * sequences
        return seconds * self.slow_s

    def tokens_per_step(self, sequences: int) -> float:
        if self.half_gain_sequences >= 1.0 or sequences <= 1:
            return self.accepted
        return 1.0 + (self.accepted - 1.0) * self.half_gain_sequences ** (sequences - 1).bit_length()


def _smooth(read: float, compute: float) -> float:
    if compute <= 0.02 * read:
        return read
    return float((read**_SHARP + compute**_SHARP) ** (1 / _SHARP))


def is_datacenter(card: Device) -> bool:
    return card.family in _DATACENTER or (card.family == "ampere" and card.bandwidth_gbs > 1200)


def step_model(
    model: Geometry,
    quant: Quant,
    kv: KvType,
    card: Device,
    layout: Layout,
    link: Link | None,
    *,
    engine: str = "vllm",
    graphs: bool = True,
    spec: Speculation | None = None,
    constants: Constants | None = None,
    split: bool = False,
    slow: float = 1.0,
    weight_only: bool = False,
) -> StepModel:
    """`weight_only`: a format the card could compute in is unpacked first (Marlin).

    `split`: layers are walked card by card (llama.cpp's default, Ollama) rather than computed on all at once.
    """
    c = constants or Constants()
    llamacpp = engine in ("llamacpp", "ollama", "ik_llamacpp")
    ways = layout.tp
    parts, bits = parts_of(model), part_bits(quant, model)
    bw = card.bandwidth_gbs * 1e9 * _bandwidth_share(quant, card, llamacpp, c)
    bw_half = card.bandwidth_gbs * 1e9 * _bandwidth_share(None, card, llamacpp, c)
    rate = _compute_rate(quant, card, llamacpp, c, weight_only)
    rate_half = _compute_rate(None, card, llamacpp, c)
    rate_experts = rate * c.mfu_experts
    imbalance = c.tp_imbalance if ways > 1 else 1.0
    half_small = bits["small"] >= 16

    small_bw, small_rate = (bw_half, rate_half) if half_small else (bw, rate)
    dense_s = (parts.small * bits["small"] / 8 / small_bw + parts.mlp * bits["mlp"] / 8 / bw) / ways * imbalance
    linear_flop = parts.linear * (1.0 / c.mfu_linear - 1.0)
    dense_flop_s = 2 * ((parts.small + linear_flop) / small_rate + parts.mlp / rate) / ways * imbalance
    head_bits = bits["ends"]
    head_s = parts.embedding * head_bits / 8 / (bw_half if head_bits >= 16 else bw) / ways * imbalance
    experts_s = parts.experts * bits["experts"] / 8 / (bw * c.bw_experts) / ways * imbalance
    experts_flop_s = (
        2 * parts.experts * model.experts_per_token / model.experts / rate_experts / ways * imbalance
        if model.experts
        else 0.0
    )

    kv_ways = min(ways, model.full_kv_heads or model.kv_heads) if not model.mla_rank else 1
    kv_share = c.bw_kv * (c.bw_kv_quantized if kv.family != "half" else 1.0)
    kv_bw = card.bandwidth_gbs * 1e9 * kv_share * _vendor(card, llamacpp, c)
    kv_s = model.kv_bytes_per_token(kv.bytes) / kv_bw / kv_ways
    window_s = model.window_bytes(1, kv.bytes) / kv_bw / min(ways, model.kv_heads)
    state_s = 2 * model.state_bytes / (card.bandwidth_gbs * 1e9 * c.bw_kv * _vendor(card, llamacpp, c)) / ways

    head_width = model.heads * (model.full_head_dim or model.head_dim)
    attention_flop_s = 4 * head_width * model.full_layers / (rate_half * 0.6) / ways
    layer_us = c.layer_us_llamacpp if llamacpp else (c.layer_us if graphs else c.layer_us_eager)
    fixed_us = (c.step_us_llamacpp if llamacpp else c.step_us) + layer_us * model.layers
    untuned = card.vendor == "amd" and not llamacpp
    fixed_us += (c.layer_us_moe_amd if untuned else c.layer_us_moe) * model.expert_layers
    fixed_us += c.layer_us_linear * model.linear_layers
    host = c.overhead_datacenter if is_datacenter(card) else 1.0
    fixed_s = fixed_us * 1e-6 * host

    comm_fixed_s = comm_token_s = hop_s = 0.0
    if ways > 1 and link is not None:
        reduce = all_reduce(ways, link, c, graphs=graphs)
        count = 2 * model.layers + 1
        comm_fixed_s = count * reduce.fixed_s
        comm_token_s = count * reduce.s_per_byte * model.hidden * 2
    hops = (layout.pp - 1) + (0 if not split else max(0, layout.cards_each - 1))
    hop_s = hops * c.split_us * 1e-6

    depth, accepted, draft_s, draft_token_s = 0, 1.0, 0.0, 0.0
    if spec is not None and spec.depth > 0:
        depth = spec.depth
        accepted = accepted_tokens(spec, c)
        passes = 1 if spec.method in ("dflash", "ngram") else depth
        draft_params = _draft_params(spec, model)
        head_pass = head_s if spec.method != "ngram" else 0.0
        launch_us = c.draft_us_llamacpp if llamacpp else c.draft_us + (c.draft_us_moe if model.is_moe else 0.0)
        launch = launch_us * 1e-6 * host * (0 if spec.method == "ngram" else 1)
        draft_experts = 0.0
        if model.is_moe and spec.method == "mtp":
            draft_experts = experts_s / max(1, model.expert_layers) * (model.experts_per_token / model.experts)
        pass_s = draft_params * bits["draft"] / 8 / bw_half / ways + head_pass + launch + draft_experts
        draft_s = passes * pass_s
        draft_token_s = passes * 2 * (draft_params + parts.embedding) / rate_half / ways
        if comm_fixed_s:
            draft_s += passes * comm_fixed_s / max(1, model.layers)
    batch_s = 0.0
    if llamacpp:
        one = experts_s * model.experts_per_token / model.experts if model.experts else 0.0
        batch_s = c.batch_llamacpp_moe * (dense_s + head_s + one + fixed_s) if one else c.batch_llamacpp * dense_s
    engine_slow = {"sglang": c.engine_sglang, "trtllm": c.engine_trtllm, "ik_llamacpp": c.engine_ik}.get(engine, 1.0)
    return StepModel(
        dense_s, head_s, experts_s, model.experts, model.experts_per_token, c.routing_skew, dense_flop_s,
        2 * parts.embedding / rate_half / ways, experts_flop_s, kv_s, window_s, model.sliding_window,
        attention_flop_s, state_s, fixed_s, c.sequence_us * 1e-6 * host, comm_fixed_s, comm_token_s,
        depth, accepted, draft_s, draft_token_s, slow * engine_slow, hop_s,
        batch_s, c.spec_batch_llamacpp if llamacpp else 1.0,
    )  # fmt: skip


def accepted_tokens(spec: Speculation, c: Constants) -> float:
    """Expected tokens a step brings: each drafted one counts only if all before it were right."""
    a = spec.acceptance
    if a is None:
        a = {"mtp": c.accept_mtp, "dflash": c.accept_dflash, "eagle": c.accept_eagle, "draft": c.accept_draft}.get(
            spec.method, c.accept_ngram
        )
    total, chance = 1.0, 1.0
    for place in range(spec.depth):
        chance *= a * 0.985**place
        total += chance
    return total


def _draft_params(spec: Speculation, model: Geometry) -> float:
    if spec.method == "draft":
        return 0.6e9
    parts = parts_of(model)
    layer = (parts.attention + parts.linear + parts.mlp) / max(1, model.layers)
    if model.is_moe:
        layer = (parts.small + parts.mlp) / max(1, model.layers)
    return layer * _DRAFT_LAYERS.get(spec.method, 0.0)


def _bandwidth_share(quant: Quant | None, card: Device, llamacpp: bool, c: Constants) -> float:
    if llamacpp:
        share = c.bw_gguf_half if quant is None or quant.bits >= 16 else c.bw_gguf
    elif quant is None:
        share = c.bw_half
    else:
        share = {
            "int4": c.bw_int4, "int8": c.bw_int8, "fp8": c.bw_fp8, "fp4": c.bw_fp4, "gguf": c.bw_gguf * 0.2,
        }.get(quant.family, c.bw_half)  # fmt: skip
    return share * _vendor(card, llamacpp, c)


def _vendor(card: Device, llamacpp: bool, c: Constants) -> float:
    share = 1.0
    if card.vendor == "amd":
        share = c.on_amd_llamacpp if llamacpp else c.on_amd
    elif card.vendor == "intel":
        share = c.on_intel
    elif card.vendor == "apple":
        share = c.on_apple
    if card.unified_memory and card.vendor != "apple":
        share *= c.on_unified
    if is_datacenter(card):
        share *= c.on_datacenter_llamacpp if llamacpp else c.on_datacenter
    if card.vendor == "nvidia" and card.family == "blackwell" and not card.unified_memory:
        share *= c.on_blackwell
    return share


def _compute_rate(quant: Quant | None, card: Device, llamacpp: bool, c: Constants, weight_only: bool = False) -> float:
    """FLOPs a second in a large batch."""
    fp16 = card.fp16_tflops or card.bandwidth_gbs * 0.06
    if llamacpp:
        rate = fp16 * c.mfu_gguf
    elif quant is None or quant.family == "half":
        rate = fp16 * c.mfu_half
    elif weight_only:
        rate = fp16 * c.mfu_int4
    elif quant.family in ("fp8", "int8"):
        told = card.fp8_tflops if quant.family == "fp8" else card.int8_tops
        fast = told or (2 * fp16 if quant.family in card.formats else 0.0)
        rate = max(fp16 * c.mfu_int4, fast * c.mfu_eight)
    elif quant.family == "fp4" and "fp4" in card.formats:
        rate = max(fp16 * c.mfu_int4, (card.fp4_tflops or 8 * fp16) * c.mfu_fp4 * 0.5)
    else:
        rate = fp16 * c.mfu_int4
    if card.vendor in ("amd", "intel", "huawei"):
        rate *= c.mfu_amd
    if card.unified_memory:
        rate *= c.mfu_unified
    if is_datacenter(card):
        rate *= c.mfu_datacenter
    return rate * 1e12
