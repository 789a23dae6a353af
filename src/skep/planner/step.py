"""How long one forward pass takes: bytes over bandwidth, FLOPs over the tensor cores, launches,
all-reduces.

Knows one replica and what is in its batch; knows nothing of queues, memory or how loads arrive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.models import Geometry
from skep.catalog.names import table
from skep.planner.memory import version_of
from skep.planner.setup import (
    BRIDGE_GBS,
    CardLink,
    KvType,
    Quant,
    Setup,
    Speculation,
    is_built_in,
    part_bits,
    parts_of,
)

# Microseconds of a small all-reduce on 2 cards, and how it grows with more: the engine's own
# kernel inside CUDA graphs on A100, H100 and H200 (NVLink of a board); NCCL over a bridge or PCIe
# (L40S, RTX PRO 6000: 6; on Ampere 10).
_SMALL_US = {"nvlink": (4.8, 0.12), "bridge": (6.3, 0.5), "pcie": (6.5, 0.95)}
_OLDER = {"ampere", "turing", "volta", "pascal"}
_OLDER_US = 3.8  # more for each call of NCCL
# Share of the link that a large one reaches on 2 cards, and how it falls with more.
_LARGE_SHARE = {"nvlink": (0.65, 0.35), "bridge": (0.65, 0.35), "pcie": (0.62, 1.2)}
_LARGE_LOSS = 1.3  # a large one in an engine, beside one in a loop of its own
# where every transfer goes through the CPU's memory: times the latency, share of the rate
_NO_P2P = 1.45
_NO_P2P_RATE = 0.4
_LAUNCH_US = 60.0  # of an all-reduce that Python launches rather than a graph
# times longer beside cards for servers, whose CPUs are slower by the core: one A100, one H200
_SERVER_LAUNCHES = 1.4

# The numbers that no data sheet tells: fitted to published and own measurements.
_FILE = "fitted.toml"


@lru_cache(maxsize=1)
def fitted_bands() -> Mapping[str, Any]:
    return table(_FILE, "bands")


class Constants(msgspec.Struct, frozen=True):
    """Where the fit starts from and is drawn back to.

    `bw_` and `mfu_`: shares of the data sheet's rate.
    """

    # memory bandwidth that a decode step reaches
    bw: float = 0.85  # weights of 8 and 16 bits
    bw_int4: float = 0.85
    bw_gguf: float = 0.78
    bw_experts: float = 0.85  # of that, when weights are read in pieces of single experts
    bw_kv: float = 0.70
    bw_amd: float = 0.75  # of that, on AMD's cards
    # bytes of 4-bit weights a cycle and multiprocessor: H200, AWQ (Marlin), shapes of 8B and 32B
    unpack: float = 7.8
    # tensor cores, in prompts and large batches
    mfu: float = 0.70
    mfu_low: float = 0.45  # of the rate of 8 and 4 bits
    mfu_gguf: float = 0.65
    # microseconds that no byte or FLOP explains
    layer_us: float = 45.0
    layer_us_more: float = 15.0  # more for a layer with experts, and for one of linear attention
    layer_us_eager: float = 400.0  # launching a layer without CUDA graphs, while the card works
    layer_us_llamacpp: float = 30.0
    sequence_us: float = 15.0  # scheduler, sampling and detokenizing of one sequence
    before_2026: float = 2.0  # times these in vLLM and SGLang of 2025 and before
    # cycles of a multiprocessor a weight, for each further token of a small batch
    batch_gguf: float = 0.028
    link_latency: float = 1.0  # times the measured all-reduce of a like link
    draft_us: float = 1000.0  # a draft, beside its bytes
    # more where cards draft together: outside of graphs, gathered each time
    draft_us_tp: float = 2000.0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.__struct_fields__


@lru_cache(maxsize=1)
def published_constants() -> Constants:
    return Constants(**table(_FILE, "constants"))


class AllReduce(msgspec.Struct, frozen=True):
    """Seconds = `fixed_s` + `s_per_byte` x bytes."""

    fixed_s: float
    s_per_byte: float


NO_LINK = AllReduce(0.0, 0.0)


def all_reduce(cards: int, link: CardLink, constants: Constants, *, family: str = "") -> AllReduce:
    """Return what one all-reduce among the cards of a group takes.

    `family`: of the cards; NCCL is slower on Ampere and before.
    """
    if cards < 2:
        return NO_LINK
    if link.kind != "nvlink":
        kind = "pcie"
    else:
        kind = "bridge" if link.gbs < BRIDGE_GBS else "nvlink"
    base_us, growth = _SMALL_US[kind]
    if kind != "nvlink" and family in _OLDER:
        base_us += _OLDER_US
    share, fall = _LARGE_SHARE[kind]
    if link.p2p:
        latency_factor = constants.link_latency
        rate_kept = 1.0
    else:
        latency_factor = constants.link_latency * _NO_P2P
        rate_kept = _NO_P2P_RATE
    if kind != "pcie":
        # Over NVLink three tenths of the factor count.
        latency_factor = 1.0 + (latency_factor - 1.0) * 0.3
    fixed_us = base_us * (cards / 2) ** growth * latency_factor
    rate = link.gbs * share / (cards / 2) ** fall * rate_kept
    return AllReduce(fixed_us * 1e-6, _LARGE_LOSS / (rate * 1e9))


_DATACENTER = {"volta", "hopper", "blackwell-dc", "cdna4", "cdna3", "cdna2", "cdna"}
# the die with HBM, not the one of the GeForce cards
_DATACENTER_AMPERE = ("a100", "a30", "a800", "cmp-170hx")
_TUNED_AMD = {"cdna3", "cdna4"}  # with kernels of AMD's own for experts
_UNTUNED_EXPERTS_US = 650.0  # more for a layer with experts elsewhere on AMD: R9700, vLLM of 2025
_GGUF_IN_VLLM = 0.2  # "GGUF in vLLM is slow: 5 to 10 times slower than Marlin"
# of vLLM's bytes a cycle, in any format: b11434 on one H200, Q4_K_M; an A100 with F16 and Q4
_LLAMACPP_LOADS = 0.67
# of cards with HBM, at most (data sheets)
_CLOCK_HZ = {"volta": 1.5e9, "ampere": 1.41e9, "hopper": 1.98e9}
_USUAL_CLOCK_HZ = 1.9e9
_UNITS = 60  # multiprocessors of a card whose number is not known
# share of the bandwidth, beside what NVIDIA's cards reach; one source each
_BANDWIDTH_OF = {"intel": 0.87, "apple": 0.85}
_COMPUTE_OF = {"amd": 0.5, "huawei": 0.5, "intel": 0.9}
# of the data sheet's rate, on chips that share memory and power with a CPU
_COMPUTE_UNIFIED = 0.77
_COMPUTE_EXPERTS = 0.55  # of the rate of whole matrices
# of the share GeForce cards reach: 80 TFLOPS on an H200 (Q4_K_M), 120 on an A100 (F16, 2024)
_LLAMACPP_ON_HBM = 0.25
_COMPUTE_UNPACKED = 0.85  # the same of weights that are unpacked for it
_COMPUTE_LINEAR = 0.5  # the same of linear attention
_ATTENTION_SHARE = 0.6  # the same of attention over a prompt
_UNPACKED_KV = 0.8  # of the bandwidth of 16-bit KV, when the cache has to be unpacked
_IMBALANCE = 1.07  # of tensor parallel, for each doubling of the cards
# exponent of the tokens of a batch in the count of distinct experts; 1: routed at random
EXPERTS_REUSE = 0.965
# of whole experts on each card (EP), with more than one token: the busiest is waited for
_EXPERT_IMBALANCE = 1.05
# of the other stages of a pipeline, that are busy meanwhile: 4 H100, PP=4 against TP=4, published
_OVERLAP = 0.4
_HOP_S = 150e-6  # from card to card where layers are split
_BUILT_IN_LINK = 0.1  # of the drafts' cost on several cards, where they are joined on a board
_LAYERS = {"mtp": 1.0, "eagle": 1.0, "dflash": 5.0}  # of the model's own size
_DRAFT_MODEL_PARAMS = 0.6e9
# bytes a second that a desktop's CPU reads of its memory for experts: two channels of DDR5 (a
# guess)
RAM_READ = 45e9
_SHARP = 4.0  # how abruptly a pass turns from bandwidth-bound to compute-bound
# tokens of a matrix (an expert's are fewer), up to which llama.cpp multiplies them one by one
_SMALL_BATCH = 16.0
# How likely the first draft is right, and how that falls with each further one, given that all
# before were right. MTP: vLLM's counters of 27B and 31B models, published: prose 75, 47, 27 %,
# code 92, 79, 68, 59 % and 93, 81, 70 %.
_ACCEPTANCE = {"prose": (0.76, 0.86), "mixed": (0.85, 0.92), "code": (0.92, 0.96)}
TEXTS = tuple(_ACCEPTANCE)
# of MTP's chance
_METHODS = {"mtp": 1.0, "dflash": 0.93, "eagle": 0.75, "draft": 0.6, "ngram": 0.35}
# of the gain of speculation that llama.cpp keeps, for each doubling of the sequences
_LLAMACPP_GAIN = 0.3
_USUAL_FP16 = 0.06  # TFLOPS for each GB/s, of a card whose data sheet does not say


class Rates(msgspec.Struct, frozen=True):
    """Bytes and FLOPs a second of one card."""

    read: float  # weights as quantized
    read_half: float  # what stays 16 bit
    read_kv: float
    read_state: float
    compute: float
    compute_half: float
    cycles: float  # of all multiprocessors together
    llamacpp: bool
    tuned_experts: bool


def is_datacenter(card: Device) -> bool:
    return card.family in _DATACENTER or (
        card.family == "ampere" and card.id.startswith(_DATACENTER_AMPERE)
    )


class FamilyRates(msgspec.Struct, frozen=True):
    """What the kernels of one family of engines reach on a card, in bytes and FLOPs a second."""

    bandwidth: float  # of the card's memory, before any kernel's share of it
    read: float
    read_half: float
    compute: float
    compute_half: float


def rates_of(quant: Quant, kv: KvType, card: Device, engine: str, c: Constants) -> Rates:
    llamacpp = kind_of(engine).reads_gguf
    cycles = _cycles(card)
    if llamacpp:
        family = _llamacpp_rates(quant, card, cycles, c)
    else:
        family = _pooled_rates(quant, card, cycles, c)
    read_state = family.bandwidth * c.bw_kv
    if kv.family == "half":
        read_kv = read_state
    else:
        read_kv = read_state * _UNPACKED_KV
    return Rates(
        read=family.read,
        read_half=family.read_half,
        read_kv=read_kv,
        read_state=read_state,
        compute=family.compute,
        compute_half=family.compute_half,
        cycles=cycles,
        llamacpp=llamacpp,
        tuned_experts=llamacpp or card.vendor != "amd" or card.family in _TUNED_AMD,
    )


def _llamacpp_rates(quant: Quant, card: Device, cycles: float, c: Constants) -> FamilyRates:
    """Return the rates of llama.cpp's kernels, which unpack every format below 16 bits."""
    # On AMD it loses half of what vLLM loses there.
    bandwidth = _bandwidth(card, on_amd=(1.0 + c.bw_amd) / 2)
    if quant.bits < 16:
        read = bandwidth * c.bw_gguf
    else:
        read = bandwidth * c.bw
    read_half = bandwidth * c.bw
    tflops = _fp16_tflops(card) * c.mfu_gguf
    if is_datacenter(card):
        # HBM is faster than its loops load bytes, whatever the format, and its matrix kernels
        # reach less than on GeForce cards.
        loaded = c.unpack * _LLAMACPP_LOADS * cycles
        read = min(read, loaded)
        read_half = min(read_half, loaded)
        tflops = _fp16_tflops(card) * (c.mfu_gguf * _LLAMACPP_ON_HBM)
    compute = _reached_flops(tflops, card)
    return FamilyRates(
        bandwidth=bandwidth,
        read=read,
        read_half=read_half,
        compute=compute,
        compute_half=compute,
    )


def _pooled_rates(quant: Quant, card: Device, cycles: float, c: Constants) -> FamilyRates:
    """Return the rates of the kernels of vLLM and SGLang."""
    bandwidth = _bandwidth(card, on_amd=c.bw_amd)
    is_unpacked = quant.family in ("int4", "gguf") or unpacked(quant, card)
    if is_unpacked or quant.family == "fp4":
        read = bandwidth * c.bw_int4
    else:
        read = bandwidth * c.bw
    if quant.family == "gguf":
        read *= _GGUF_IN_VLLM
    if is_datacenter(card) and is_unpacked:
        # HBM is faster than weights of 4 bits can be unpacked.
        read = min(read, c.unpack * quant.bits / 4.25 * cycles)
    return FamilyRates(
        bandwidth=bandwidth,
        read=read,
        read_half=bandwidth * c.bw,
        compute=_reached_flops(_pooled_tflops(quant, card, c), card),
        compute_half=_reached_flops(_fp16_tflops(card) * c.mfu, card),
    )


def _pooled_tflops(quant: Quant, card: Device, c: Constants) -> float:
    """Return the TFLOPS of vLLM and SGLang in a large batch.

    A format without hardware for it is unpacked and computed in 16 bits.
    """
    fp16 = _fp16_tflops(card)
    in_half = fp16 * c.mfu
    if quant.family == "int4" or unpacked(quant, card):
        return in_half * _COMPUTE_UNPACKED
    if quant.family in ("fp8", "int8", "fp4"):  # the card has hardware for it
        published = {"fp8": card.fp8_tflops, "int8": card.int8_tops, "fp4": card.fp4_tflops}
        times_fp16 = 4 if quant.family == "fp4" else 2
        return max(in_half, (published[quant.family] or times_fp16 * fp16) * c.mfu_low)
    return in_half


def _bandwidth(card: Device, *, on_amd: float) -> float:
    if card.vendor == "amd":
        return card.bandwidth_gbs * 1e9 * on_amd
    return card.bandwidth_gbs * 1e9 * _BANDWIDTH_OF.get(card.vendor, 1.0)


def _cycles(card: Device) -> float:
    """Return the cycles a second of all multiprocessors together."""
    if is_datacenter(card):
        clock_hz = _CLOCK_HZ.get(card.family, _USUAL_CLOCK_HZ)
    else:
        clock_hz = _USUAL_CLOCK_HZ
    return (card.units or _UNITS) * clock_hz


def _fp16_tflops(card: Device) -> float:
    return card.fp16_tflops or card.bandwidth_gbs * _USUAL_FP16


def _reached_flops(tflops: float, card: Device) -> float:
    """Return the FLOPs a second that this vendor's chips reach where NVIDIA's reach `tflops`."""
    share = _COMPUTE_OF.get(card.vendor, 1.0)
    if card.unified_memory:
        share *= _COMPUTE_UNIFIED
    return tflops * share * 1e12


def unpacked(quant: Quant, card: Device) -> bool:
    """Return whether the card has no hardware for the format, so that a kernel (Marlin) unpacks it
    to 16 bits.
    """
    return quant.family in ("fp8", "fp4", "int8") and quant.family not in card.formats


class Drafting(msgspec.Struct, frozen=True):
    depth: int = 0
    accepted: float = 1.0  # tokens a step brings a sequence
    batch_s: float = 0.0
    sequence_s: float = 0.0


def drafting(
    spec: Speculation | None,
    model: Geometry,
    rates: Rates,
    c: Constants,
    *,
    ways: int,
    draft_bits: float,
    head_s: float,
    experts_s: float,
    reduce_s: float,
    built_in: bool = False,
) -> Drafting:
    """Return what drafting takes and brings.

    A draft reads its own layers and the whole output head; with MTP once for every drafted token.
    """
    if spec is None or spec.depth < 1:
        return Drafting()
    accepted = accepted_tokens(spec)
    if spec.method == "ngram":
        return Drafting(spec.depth, accepted)
    passes = 1 if spec.method == "dflash" else spec.depth
    params = _params(spec, model)
    reduced_s = reduce_s / max(1, model.layers)
    pass_s = params * draft_bits / 8 / rates.read_half / ways + head_s + reduced_s
    if ways == 1:
        gathered_us = 0.0
    elif built_in:
        gathered_us = c.draft_us_tp * _BUILT_IN_LINK
    else:
        gathered_us = c.draft_us_tp
    pass_s += (c.draft_us + gathered_us) * 1e-6
    if model.is_moe and spec.method == "mtp":
        pass_s += experts_s
    compute_s = 2 * (params + parts_of(model).embedding) / rates.compute_half / ways
    return Drafting(spec.depth, accepted, passes * pass_s, passes * compute_s)


def accepted_tokens(spec: Speculation) -> float:
    """Return the expected tokens of a step: a drafted one counts only if all before were right."""
    first, falls = _ACCEPTANCE[spec.text]
    if spec.acceptance is None:
        right = first * _METHODS[spec.method]
    else:
        right = spec.acceptance
    total = 1.0
    chance = 1.0
    for place in range(spec.depth):
        chance *= right * falls**place
        total += chance
    return total


def _params(spec: Speculation, model: Geometry) -> float:
    """Return the parameters that a draft reads beside the output head."""
    if spec.method == "draft":
        return _DRAFT_MODEL_PARAMS
    parts = parts_of(model)
    if model.is_moe:
        body = parts.small + parts.mlp
    else:
        body = parts.attention + parts.linear + parts.mlp
    return body / max(1, model.layers) * _LAYERS.get(spec.method, 0.0)


class StepTuning(msgspec.Struct, frozen=True):
    """Factors of one machine, from a measurement on it: on a step with one sequence, on what
    further sequences add, and on prompts.
    """

    decode: float = 1.0
    batch: float = 1.0
    prompt: float = 1.0
    # or "corrected" (others' rows of the layout), "calibrated" (`skep calibrate`), "measured"
    # (`skep bench sweep`)
    rests_on: str = "published"


UNTUNED = StepTuning()


class StepModel(msgspec.Struct, frozen=True):
    """Seconds of a pass as a function of what is in the batch; everything else is multiplied out
    beforehand.
    """

    dense_s: float  # reading what every token needs
    head_s: float
    experts_s: float  # reading all experts of all layers
    experts: int
    experts_per_token: int
    expert_imbalance: float
    dense_flop_s: float  # computing it for one token
    head_flop_s: float
    experts_flop_s: float
    kv_s: float  # reading one token of KV of one sequence
    window_s: float  # the same in sliding layers, up to `window` tokens
    window: int
    # llama.cpp with one cache for all slots: each sequence reads what all of them have
    shared_kv: bool
    attention_flop_s: float  # one prompt token against one earlier token
    state_s: float  # reading and writing one sequence's state
    fixed_s: float
    # without CUDA graphs: Python launches every kernel while the card works; the slower of both
    # counts
    launch_s: float
    sequence_s: float
    comm_fixed_s: float
    comm_token_s: float
    depth: int
    accepted: float  # tokens a step brings a sequence
    draft_s: float  # drafting for a batch, bytes and launches
    draft_token_s: float  # computing it for one sequence
    stages: int  # of a pipeline: as many batches are on their way at once
    tuning: StepTuning
    batch_s: float  # llama.cpp's small batches: more for every further token, up to `batch_tokens`
    batch_tokens: float
    gain_kept: float  # llama.cpp: of the gain of speculation, for each doubling of the sequences

    def seconds(
        self, sequences: int, context: float, prompt: float = 0.0, prompt_context: float = 0.0
    ) -> float:
        """Return the seconds of a pass, with this machine's factors.

        `context`: KV tokens of all decoding sequences. `prompt_context`: mean tokens before the
        piece of prompt.
        """
        whole = self.untuned(sequences, context, prompt, prompt_context)
        if self.tuning is UNTUNED:
            return whole
        if not sequences:
            return whole * self.tuning.prompt
        alone = self.untuned(sequences, context) if prompt else whole
        if sequences > 1:
            first = self.untuned(1, context / sequences)
        else:
            first = alone
        decoding = (first + (alone - first) * self.tuning.batch) * self.tuning.decode
        return decoding + (whole - alone) * self.tuning.prompt

    def untuned(
        self, sequences: float, context: float, prompt: float = 0.0, prompt_context: float = 0.0
    ) -> float:
        """Return the seconds of a pass as the formulas have it, from the arguments of `seconds`.

        The simulation of a load calls it for every pass, hence the few names and calls.
        """
        if self.stages > 1:
            at_once = self._batches_at_once(sequences, prompt)
            sequences = sequences / at_once
            context = context / at_once
            prompt = prompt / at_once
        per_sequence = 1 + self.depth
        tokens = sequences * per_sequence + prompt
        if tokens <= 0:
            return 0.0
        read = self.dense_s + self.head_s
        seconds = _smooth(self.dense_s, self.dense_flop_s * tokens)
        if self.experts:
            share = 1.0 - (1.0 - self.experts_per_token / self.experts) ** (tokens**EXPERTS_REUSE)
            uneven = self.expert_imbalance if tokens > 1 else 1.0
            read += self.experts_s * share * uneven
            seconds += _smooth(self.experts_s * share, self.experts_flop_s * tokens) * uneven
        seconds += _smooth(self.head_s, self.head_flop_s * max(1.0, sequences * per_sequence))
        if self.batch_s and tokens > 1:
            seconds = self._small_batch_s(tokens, read, seconds)
        if self.shared_kv:
            seconds += self.kv_s * context * max(1.0, sequences)
        else:
            seconds += self.kv_s * context
        seconds += self.state_s * (sequences + (1 if prompt else 0))
        if self.window and sequences:
            seconds += self.window_s * sequences * min(self.window, context / sequences)
        if prompt:
            full = self.attention_flop_s * prompt * (prompt_context + prompt / 2)
            seconds += full + self.kv_s * prompt_context
        seconds += self.fixed_s + self.sequence_s * sequences
        seconds += self.comm_fixed_s + self.comm_token_s * tokens
        if self.launch_s:
            seconds = max(seconds, self.launch_s + self.sequence_s * sequences)
        if self.depth and sequences:
            seconds += self.draft_s + self.draft_token_s * sequences
        return seconds

    def _batches_at_once(self, sequences: float, prompt: float) -> float:
        """Return how many batches the stages of a pipeline work on at the same time."""
        batches = max(1.0, min(self.stages, sequences + (1 if prompt else 0)))
        return 1.0 + _OVERLAP * (batches - 1.0)

    def _small_batch_s(self, tokens: float, read: float, seconds: float) -> float:
        """Return the seconds of llama.cpp's small batches: one by one or all at once, the slower
        of both, but no more than as many steps of one token.

        `seconds`: all at once; `read`: of that the reading.
        """
        routed_s = self.experts_s * self.experts_per_token / (self.experts or 1)
        single_s = self.dense_s + self.head_s + routed_s
        longest = max(seconds, tokens * single_s)
        one_by_one = read + self.batch_s * (min(tokens, self.batch_tokens) - 1.0)
        return max(seconds, min(longest, one_by_one))

    def tokens_per_step(self, sequences: int) -> float:
        if self.gain_kept >= 1.0 or sequences <= 1:
            return self.accepted
        return 1.0 + (self.accepted - 1.0) * self.gain_kept ** (sequences - 1).bit_length()


def _smooth(read: float, compute: float) -> float:
    if compute <= 0.02 * read:
        return read
    return float((read**_SHARP + compute**_SHARP) ** (1 / _SHARP))


class WeightTimes(msgspec.Struct, frozen=True):
    """What the weights of a card take in a pass.

    `_s`: to read them; `_flop_s`: to compute them for one token.
    """

    dense_s: float
    head_s: float
    experts_s: float  # all experts of all layers
    dense_flop_s: float
    head_flop_s: float
    experts_flop_s: float
    batch_s: float  # in small batches of llama.cpp, for each further token
    routed: float  # share of the experts that one token goes through; 0: there are none


def step_model(
    setup: Setup,
    card: Device,
    link: CardLink | None,
    c: Constants,
    *,
    tuning: StepTuning = UNTUNED,
) -> StepModel:
    model = setup.model
    layout = setup.layout
    ways = layout.tp
    rates = rates_of(setup.quant, setup.kv, card, setup.engine, c)
    weights = _weight_times(setup, rates, c)
    if link is not None:
        reduce = all_reduce(ways, link, c, family=card.family)
    else:
        reduce = NO_LINK
    reductions = 2 * model.layers + 1 if ways > 1 else 0
    draft = drafting(
        setup.spec,
        model,
        rates,
        c,
        ways=ways,
        draft_bits=part_bits(setup.quant, model)["draft"],
        head_s=weights.head_s,
        experts_s=weights.experts_s * weights.routed / max(1, model.expert_layers),
        reduce_s=reductions * reduce.fixed_s,
        built_in=link is not None and is_built_in(link),
    )
    head_width = model.heads * (model.full_head_dim or model.head_dim)
    attention_flops = rates.compute_half * _ATTENTION_SHARE
    if model.mla_rank:
        kv_ways = 1
    else:
        kv_ways = min(ways, model.full_kv_heads or model.kv_heads)
    slower = c.before_2026 if is_old(setup) else 1.0
    if setup.graphs or rates.llamacpp:
        launch_s = 0.0
    else:
        launch_s = _launch_s(model, card, c, reductions) * slower
    return StepModel(
        dense_s=weights.dense_s,
        head_s=weights.head_s,
        experts_s=weights.experts_s,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        expert_imbalance=_EXPERT_IMBALANCE if layout.ep > 1 else 1.0,
        dense_flop_s=weights.dense_flop_s,
        head_flop_s=weights.head_flop_s,
        experts_flop_s=weights.experts_flop_s,
        kv_s=model.kv_bytes_per_token(setup.kv.bytes) / rates.read_kv / kv_ways,
        window_s=model.window_bytes(1, setup.kv.bytes) / rates.read_kv / min(ways, model.kv_heads),
        window=model.sliding_window,
        shared_kv=rates.llamacpp and setup.shared_kv,
        attention_flop_s=4 * head_width * model.kept_layers / attention_flops / ways,
        state_s=2 * model.state_bytes / rates.read_state / ways,
        fixed_s=_fixed_s(model, rates, c) * slower + _hops_s(setup),
        launch_s=launch_s,
        sequence_s=c.sequence_us * 1e-6 * slower**2,
        comm_fixed_s=reductions * reduce.fixed_s,
        comm_token_s=reductions * reduce.s_per_byte * model.hidden * 2,
        depth=draft.depth,
        accepted=draft.accepted,
        draft_s=draft.batch_s,
        draft_token_s=draft.sequence_s,
        stages=1 if rates.llamacpp else layout.pp,
        tuning=tuning,
        batch_s=weights.batch_s,
        batch_tokens=_SMALL_BATCH / (weights.routed or 1.0),
        gain_kept=_LLAMACPP_GAIN if rates.llamacpp else 1.0,
    )


def _weight_times(setup: Setup, rates: Rates, c: Constants) -> WeightTimes:
    model = setup.model
    parts = parts_of(model)
    bits = part_bits(setup.quant, model)
    ways = setup.layout.tp
    uneven = _IMBALANCE ** math.log2(ways) / ways
    if bits["small"] >= 16:
        small_read = rates.read_half
        small_compute = rates.compute_half
    else:
        small_read = rates.read
        small_compute = rates.compute
    head_read = rates.read_half if bits["ends"] >= 16 else rates.read
    small_s = parts.small * bits["small"] / 8 / small_read
    mlp_s = parts.mlp * bits["mlp"] / 8 / rates.read
    scan = parts.linear * (1.0 / _COMPUTE_LINEAR - 1.0)
    on_card = (1 - setup.ram_share) / (rates.read * c.bw_experts)
    expert_bytes = parts.experts * bits["experts"] / 8
    if model.experts:
        routed = model.experts_per_token / model.experts
    else:
        routed = 0.0
    if rates.llamacpp:
        weights_of_token = parts.small + parts.mlp + parts.embedding + parts.experts * routed
        batch_s = c.batch_gguf * weights_of_token / rates.cycles / ways
    else:
        batch_s = 0.0
    experts_compute = rates.compute * _COMPUTE_EXPERTS
    return WeightTimes(
        dense_s=(small_s + mlp_s) * uneven,
        head_s=parts.embedding * bits["ends"] / 8 / head_read * uneven,
        experts_s=expert_bytes * (on_card + setup.ram_share / RAM_READ) * uneven,
        dense_flop_s=2
        * ((parts.small + scan) / small_compute + parts.mlp / rates.compute)
        * uneven,
        head_flop_s=2 * parts.embedding / rates.compute_half / ways,
        experts_flop_s=2 * parts.experts * routed / experts_compute * uneven,
        batch_s=batch_s,
        routed=routed,
    )


def is_old(setup: Setup) -> bool:
    """Return whether the engine is of 2025 or before, whose launches took longer.

    A version that is not said is today's.
    """
    year = re.match(r"20\d\d\b", setup.version or "")
    if year:
        return int(year[0]) < 2026
    numbers = version_of(setup.version)
    first = kind_of(setup.engine).first_of_2026
    return first is not None and numbers is not None and numbers < first


def _hops_s(setup: Setup) -> float:
    """Return the seconds from card to card.

    llama.cpp walks the layers of one card after the other, there and back.
    """
    ways = 2 if kind_of(setup.engine).reads_gguf else 1
    return (setup.layout.pp - 1) * ways * _HOP_S


def _fixed_s(model: Geometry, rates: Rates, c: Constants) -> float:
    """Return launches and bookkeeping, by layer and by what the layer is made of."""
    if rates.llamacpp:
        layer_us = c.layer_us_llamacpp
    else:
        layer_us = c.layer_us
    if rates.tuned_experts:
        expert_layer_us = c.layer_us_more
    else:
        expert_layer_us = _UNTUNED_EXPERTS_US
    us = layer_us * model.layers
    us += expert_layer_us * model.expert_layers
    us += c.layer_us_more * model.linear_layers
    return us * 1e-6


def _launch_s(model: Geometry, card: Device, c: Constants, reductions: int) -> float:
    """Return what Python takes to launch all kernels of a step. `reductions`: none on one card."""
    us = c.layer_us_eager * model.layers + _LAUNCH_US * reductions
    if is_datacenter(card):
        return us * 1e-6 * _SERVER_LAUNCHES
    return us * 1e-6
