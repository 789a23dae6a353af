"""How long one forward pass takes: bytes over bandwidth, FLOPs over the tensor cores, launches, all-reduces."""

from __future__ import annotations

import math

import msgspec

from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.planner.constants import Constants
from skep.planner.quants import KvType, Quant, part_bits, parts_of
from skep.planner.rigs import NO_LINK, all_reduce, is_built_in
from skep.planner.setup import CardLink, Setup, Speculation

LLAMACPP = ("llamacpp", "ollama", "ik_llamacpp")
_DATACENTER = {"volta", "hopper", "blackwell-dc", "cdna4", "cdna3", "cdna2", "cdna"}
_DATACENTER_AMPERE = ("a100", "a30", "a800", "cmp-170hx")  # the die with HBM, not the one of the GeForce cards
_TUNED_AMD = {"cdna3", "cdna4"}  # with kernels of AMD's own for experts
_GGUF_IN_VLLM = 0.2  # "GGUF in vLLM is slow: 5 to 10 times slower than Marlin"
_LAYERS = {"mtp": 1.0, "eagle": 1.0, "dflash": 5.0}  # of the model's own size
_DRAFT_MODEL_PARAMS = 0.6e9
_TIRING = 0.95  # a further draft after right ones: 87, 86, 80 % and 92, 86, 86 % and 75, 63, 57 % were published
_BUILT_IN_LINK = 0.1  # of the drafts' cost on several cards, where they are joined on a board
RAM_READ = 45e9  # bytes a second that a desktop's CPU reads of its memory for experts: two channels of DDR5 (a guess)
_SHARP = 2.5  # how abruptly a pass turns from bandwidth-bound to compute-bound
_ATTENTION_SHARE = 0.6  # of the rate of plain multiplications that attention over a prompt reaches


class Rates(msgspec.Struct, frozen=True):
    """Bytes and FLOPs a second of one card. `host` scales launches: servers have faster CPUs."""

    read: float  # weights as quantized
    read_half: float  # what stays 16 bit
    read_kv: float
    read_state: float
    compute: float
    compute_half: float
    host: float
    llamacpp: bool
    tuned_experts: bool


def is_datacenter(card: Device) -> bool:
    return card.family in _DATACENTER or (card.family == "ampere" and card.id.startswith(_DATACENTER_AMPERE))


def rates_of(quant: Quant, kv: KvType, card: Device, engine: str, c: Constants, *, weight_only: bool = False) -> Rates:
    llamacpp = engine in LLAMACPP
    bandwidth = card.bandwidth_gbs * 1e9 * _on_card(card, llamacpp, c)
    unpacked = 1.0 if kv.family == "half" else c.bw_kv_quantized
    shares = {"int4": c.bw_int4, "int8": c.bw_int8, "fp8": c.bw_fp8, "fp4": c.bw_fp4, "gguf": c.bw_gguf * _GGUF_IN_VLLM}
    own = c.bw_gguf_half if quant.bits >= 16 else c.bw_gguf
    return Rates(
        read=bandwidth * (own if llamacpp else shares.get(quant.family, c.bw_half)),
        read_half=bandwidth * (c.bw_gguf_half if llamacpp else c.bw_half),
        read_kv=bandwidth * c.bw_kv * unpacked,
        read_state=bandwidth * c.bw_kv,
        compute=_compute(quant, card, llamacpp, c, weight_only=weight_only),
        compute_half=_compute(None, card, llamacpp, c),
        host=c.overhead_datacenter if is_datacenter(card) else 1.0,
        llamacpp=llamacpp,
        tuned_experts=llamacpp or card.vendor != "amd" or card.family in _TUNED_AMD,
    )


def _on_card(card: Device, llamacpp: bool, c: Constants) -> float:
    on_amd = c.on_amd_llamacpp if llamacpp else c.on_amd
    share = {"amd": on_amd, "intel": c.on_intel, "apple": c.on_apple}.get(card.vendor, 1.0)
    if card.unified_memory and card.vendor != "apple":
        share *= c.on_unified
    if is_datacenter(card):
        share *= c.on_datacenter_llamacpp if llamacpp else c.on_datacenter
    if card.vendor == "nvidia" and card.family == "blackwell" and not card.unified_memory:
        share *= c.on_blackwell
    return share


def _compute(quant: Quant | None, card: Device, llamacpp: bool, c: Constants, *, weight_only: bool = False) -> float:
    """In a large batch. A format without hardware for it is unpacked and computed in 16 bit."""
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
    if card.vendor in ("amd", "huawei"):
        rate *= c.mfu_amd
    elif card.vendor == "intel":
        rate *= c.mfu_intel
    if card.unified_memory:
        rate *= c.mfu_unified
    if is_datacenter(card):
        rate *= c.mfu_datacenter
    return rate * 1e12


class Drafting(msgspec.Struct, frozen=True):
    depth: int = 0
    accepted: float = 1.0  # tokens a step brings a sequence
    batch_s: float = 0.0
    sequence_s: float = 0.0


def drafting(
    spec: Speculation | None, model: Geometry, rates: Rates, c: Constants, *,
    ways: int, draft_bits: float, head_s: float, experts_s: float, reduce_s: float, built_in_link: bool = False,
) -> Drafting:  # fmt: skip
    """A draft reads its own layers and the whole output head; with MTP once for every drafted token."""
    if spec is None or spec.depth < 1:
        return Drafting()
    accepted = accepted_tokens(spec, c)
    if spec.method == "ngram":
        return Drafting(spec.depth, accepted)
    passes = 1 if spec.method == "dflash" else spec.depth
    params = _params(spec, model)
    launch_us = c.draft_us_llamacpp
    if not rates.llamacpp:
        launch_us = c.draft_us + (c.draft_us_moe if model.is_moe else 0.0)
        launch_us += (c.draft_us_tp if ways > 1 else 0.0) * (_BUILT_IN_LINK if built_in_link else 1.0)
    one_s = params * draft_bits / 8 / rates.read_half / ways + head_s + launch_us * 1e-6 * rates.host
    one_s += reduce_s / max(1, model.layers)
    if model.is_moe and spec.method == "mtp":
        one_s += experts_s
    compute_s = 2 * (params + parts_of(model).embedding) / rates.compute_half / ways
    return Drafting(spec.depth, accepted, passes * one_s, passes * compute_s)


def accepted_tokens(spec: Speculation, c: Constants) -> float:
    """Expected tokens of a step: a drafted one counts only if all before it were right."""
    chances = {"mtp": c.accept_mtp, "dflash": c.accept_dflash, "eagle": c.accept_eagle, "draft": c.accept_draft}
    right = chances.get(spec.method, c.accept_ngram) if spec.acceptance is None else spec.acceptance
    total, chance = 1.0, 1.0
    for place in range(spec.depth):
        chance *= right * _TIRING**place
        total += chance
    return total


def _params(spec: Speculation, model: Geometry) -> float:
    if spec.method == "draft":
        return _DRAFT_MODEL_PARAMS
    parts = parts_of(model)
    body = parts.small + parts.mlp if model.is_moe else parts.attention + parts.linear + parts.mlp
    return body / max(1, model.layers) * _LAYERS.get(spec.method, 0.0)


class StepTuning(msgspec.Struct, frozen=True):
    """What a measurement on one machine multiplies: a step with one sequence, what further ones add, prompts."""

    decode: float = 1.0
    batch: float = 1.0
    prompt: float = 1.0


UNTUNED = StepTuning()


class StepModel(msgspec.Struct, frozen=True):
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
    engine_slow: float  # times everything
    tuning: StepTuning
    hop_s: float
    batch_s: float  # llama.cpp's small batches: more for every further token, up to 16
    half_gain_sequences: float  # llama.cpp: speculation stops paying as sequences grow

    def seconds(self, sequences: int, context: float, prompt: float = 0.0, prompt_context: float = 0.0) -> float:
        """`context`: KV tokens of all decoding sequences; `prompt_context`: mean tokens before the piece of prompt."""
        whole = self.untuned(sequences, context, prompt, prompt_context)
        if self.tuning is UNTUNED:
            return whole
        if not sequences:
            return whole * self.tuning.prompt
        alone = self.untuned(sequences, context) if prompt else whole
        first = self.untuned(1, context / sequences) if sequences > 1 else alone
        decoding = (first + (alone - first) * self.tuning.batch) * self.tuning.decode
        return decoding + (whole - alone) * self.tuning.prompt

    def untuned(self, sequences: int, context: float, prompt: float = 0.0, prompt_context: float = 0.0) -> float:
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
            full = self.attention_flop_s * prompt * (prompt_context + prompt / 2)
            seconds += full + self.kv_s * prompt_context
        if self.batch_s and tokens > 1:
            seconds += self.batch_s * (min(tokens, 16.0) - 1.0)
        seconds += self.fixed_s + self.sequence_s * sequences + self.hop_s
        seconds += self.comm_fixed_s + self.comm_token_s * tokens
        if self.depth and sequences:
            seconds += self.draft_s + self.draft_token_s * sequences
        return seconds * self.engine_slow

    def tokens_per_step(self, sequences: int) -> float:
        if self.half_gain_sequences >= 1.0 or sequences <= 1:
            return self.accepted
        return 1.0 + (self.accepted - 1.0) * self.half_gain_sequences ** (sequences - 1).bit_length()


def _smooth(read: float, compute: float) -> float:
    if compute <= 0.02 * read:
        return read
    return float((read**_SHARP + compute**_SHARP) ** (1 / _SHARP))


def step_model(
    setup: Setup, card: Device, link: CardLink | None, c: Constants, *,
    split: bool = False, tuning: StepTuning = UNTUNED, weight_only: bool = False,
) -> StepModel:  # fmt: skip
    """`split`: layers are walked card by card (llama.cpp, Ollama). `weight_only`: weights unpacked first (Marlin)."""
    model, quant, kv, layout = setup.model, setup.quant, setup.kv, setup.layout
    rates = rates_of(quant, kv, card, setup.engine, c, weight_only=weight_only)
    parts, bits, ways = parts_of(model), part_bits(quant, model), layout.tp
    uneven = c.tp_imbalance ** math.log2(ways) / ways
    whole_small = bits["small"] >= 16
    small_read = rates.read_half if whole_small else rates.read
    small_rate = rates.compute_half if whole_small else rates.compute
    dense_s = (parts.small * bits["small"] / 8 / small_read + parts.mlp * bits["mlp"] / 8 / rates.read) * uneven
    scan = parts.linear * (1.0 / c.mfu_linear - 1.0)  # linear attention keeps the tensor cores less busy
    head_s = parts.embedding * bits["ends"] / 8 / (rates.read_half if bits["ends"] >= 16 else rates.read) * uneven
    on_card = (1 - setup.ram_share) / (rates.read * c.bw_experts)
    experts_s = parts.experts * bits["experts"] / 8 * (on_card + setup.ram_share / RAM_READ) * uneven
    routed = model.experts_per_token / model.experts if model.experts else 0.0
    fixed_s = _fixed_s(model, rates, c, graphs=setup.graphs)
    reduce = all_reduce(ways, link, c, graphs=setup.graphs, family=card.family) if link is not None else NO_LINK
    reductions = 2 * model.layers + 1
    draft = drafting(
        setup.spec, model, rates, c, ways=ways, draft_bits=bits["draft"], head_s=head_s,
        experts_s=experts_s * routed / max(1, model.expert_layers), reduce_s=reductions * reduce.fixed_s,
        built_in_link=link is not None and is_built_in(link),
    )  # fmt: skip
    head_width = model.heads * (model.full_head_dim or model.head_dim)
    kv_ways = 1 if model.mla_rank else min(ways, model.full_kv_heads or model.kv_heads)
    slow = {"sglang": c.engine_sglang, "trtllm": c.engine_trtllm, "ik_llamacpp": c.engine_ik}
    batch_s = 0.0
    if rates.llamacpp:
        whole = dense_s + head_s + experts_s * routed + fixed_s
        batch_s = c.batch_llamacpp_moe * whole if model.experts else c.batch_llamacpp * dense_s
    return StepModel(
        dense_s=dense_s,
        head_s=head_s,
        experts_s=experts_s,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        routing_skew=c.routing_skew,
        dense_flop_s=2 * ((parts.small + scan) / small_rate + parts.mlp / rates.compute) * uneven,
        head_flop_s=2 * parts.embedding / rates.compute_half / ways,
        experts_flop_s=2 * parts.experts * routed / (rates.compute * c.mfu_experts) * uneven,
        kv_s=model.kv_bytes_per_token(kv.bytes) / rates.read_kv / kv_ways,
        window_s=model.window_bytes(1, kv.bytes) / rates.read_kv / min(ways, model.kv_heads),
        window=model.sliding_window,
        attention_flop_s=4 * head_width * model.full_layers / (rates.compute_half * _ATTENTION_SHARE) / ways,
        state_s=2 * model.state_bytes / rates.read_state / ways,
        fixed_s=fixed_s,
        sequence_s=c.sequence_us * 1e-6 * rates.host,
        comm_fixed_s=reductions * reduce.fixed_s,
        comm_token_s=reductions * reduce.s_per_byte * model.hidden * 2,
        depth=draft.depth,
        accepted=draft.accepted,
        draft_s=draft.batch_s,
        draft_token_s=draft.sequence_s,
        engine_slow=slow.get(setup.engine, 1.0),
        tuning=tuning,
        hop_s=(layout.pp - 1) * (2 if split else 1) * c.split_us * 1e-6,
        batch_s=batch_s,
        half_gain_sequences=c.spec_batch_llamacpp if rates.llamacpp else 1.0,
    )


def _fixed_s(model: Geometry, rates: Rates, c: Constants, *, graphs: bool) -> float:
    """Launches and bookkeeping: the step's own, and each layer's by what it is made of."""
    if rates.llamacpp:
        us = c.step_us_llamacpp + c.layer_us_llamacpp * model.layers + c.layer_us_linear_llamacpp * model.linear_layers
    else:
        us = c.step_us + (c.layer_us if graphs else c.layer_us_eager) * model.layers
        us += c.layer_us_linear * model.linear_layers
    us += (c.layer_us_moe if rates.tuned_experts else c.layer_us_moe_amd) * model.expert_layers
    return us * 1e-6 * rates.host
