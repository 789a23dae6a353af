"""How long one forward pass takes: bytes over bandwidth, FLOPs over the tensor cores, launches, all-reduces.

A pass decodes some sequences and carries a piece of somebody's prompt beside them, as continuous batching does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from skep.catalog.devices import Device
from skep.catalog.geometry import Geometry
from skep.planner.constants import Constants
from skep.planner.drafting import drafting
from skep.planner.links import NO_LINK, all_reduce, is_built_in
from skep.planner.parts import part_bits, parts_of
from skep.planner.quants import KvType, Quant
from skep.planner.rates import Rates, rates_of
from skep.planner.setup import Layout, Link, Speculation

_SHARP = 2.5  # how abruptly a pass turns from bandwidth-bound to compute-bound
_ATTENTION_SHARE = 0.6  # of the rate of plain multiplications that attention over a prompt reaches


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a measurement on one machine multiplies: a step with one sequence, what further ones add, prompts."""

    decode: float = 1.0
    batch: float = 1.0
    prompt: float = 1.0


UNTUNED = Tuning()


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
    engine_slow: float  # times everything
    tuning: Tuning
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
            mean = prompt_context + prompt / 2
            full = self.attention_flop_s * prompt * mean
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
    tuning: Tuning = UNTUNED,
    weight_only: bool = False,
) -> StepModel:
    """`weight_only`: a format the card could compute in is unpacked first (Marlin).

    `split`: layers are walked card by card (llama.cpp's default, Ollama) rather than computed on all at once.
    """
    c = constants or Constants()
    rates = rates_of(quant, kv, card, engine, c, weight_only=weight_only)
    parts, bits, ways = parts_of(model), part_bits(quant, model), layout.tp
    uneven = c.tp_imbalance ** math.log2(ways) / ways
    whole_small = bits["small"] >= 16
    small_read = rates.read_half if whole_small else rates.read
    small_rate = rates.compute_half if whole_small else rates.compute
    dense_s = (parts.small * bits["small"] / 8 / small_read + parts.mlp * bits["mlp"] / 8 / rates.read) * uneven
    scan = parts.linear * (1.0 / c.mfu_linear - 1.0)  # linear attention keeps the tensor cores less busy
    head_s = parts.embedding * bits["ends"] / 8 / (rates.read_half if bits["ends"] >= 16 else rates.read) * uneven
    experts_s = parts.experts * bits["experts"] / 8 / (rates.read * c.bw_experts) * uneven
    routed = model.experts_per_token / model.experts if model.experts else 0.0
    fixed_s = _fixed_s(model, rates, c, graphs=graphs)
    reduce = all_reduce(ways, link, c, graphs=graphs, family=card.family) if link is not None else NO_LINK
    reductions = 2 * model.layers + 1
    draft = drafting(
        spec, model, rates, c, ways=ways, draft_bits=bits["draft"], head_s=head_s,
        experts_s=experts_s * routed / max(1, model.expert_layers), reduce_s=reductions * reduce.fixed_s,
        built_in_link=link is not None and is_built_in(link),
    )  # fmt: skip
    head_width = model.heads * (model.full_head_dim or model.head_dim)
    kv_ways = 1 if model.mla_rank else min(ways, model.full_kv_heads or model.kv_heads)
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
        engine_slow={"sglang": c.engine_sglang, "trtllm": c.engine_trtllm, "ik_llamacpp": c.engine_ik}.get(engine, 1.0),
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
