"""Rules about how an engine is started: graphs, sequences, speculation, prefill, prefix cache."""

from __future__ import annotations

from skep.planner.findings import DUAL_3090, QUAD_3090, SWARM, Finding, capability, gguf_engine, gpu_engine, used_cards
from skep.planner.memory import LARGEST_CAPTURE, capture_sizes, defaults, drafts, graph_bytes, scratch_bytes, version_of
from skep.planner.setup import Rig, Setup
from skep.units import format_bytes

DEEPEST_GAIN = 5  # MTP n=5 was the peak on a dense 27B, n=6 fell back
SAFE_EXPERT_SLOTS = 4
SAFE_HYBRID_UTILIZATION = 0.92
LARGE_PREFILL = 8192
CROWD = 8


def sane_numbers(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    use = setup.utilization
    if use is not None and not 0 < use <= 1:
        return Finding(
            "utilization",
            "refused",
            f"a utilization of {use:g} is no share of a card",
            "arithmetic",
            "--utilization 0.9",
        )
    if use is not None and use > 0.95 and gpu_engine(setup):
        sentence = f"a utilization of {use:g} leaves {(1 - use) * 100:.0f} % of the card for graphs and late buffers"
        return Finding("utilization", "costs", sentence, DUAL_3090, "0.92")
    return None


def context_known(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    most = setup.model.max_context
    if setup.context is None or most is None or setup.context <= most:
        return None
    sentence = f"a context of {setup.context} tokens is beyond the {most} that {setup.model.id} was made for"
    return Finding(
        "context", "depends", sentence, "the model's configuration", f"at most {most}, or a rope-scaled configuration"
    )


def eager_mode(setup: Setup, rig: Rig) -> Finding | None:
    if setup.graphs or not gpu_engine(setup):
        return None
    version = version_of(setup.version)
    ampere = any(capability(card) == 8.6 for card in used_cards(setup, rig))
    if setup.engine == "vllm" and version is not None and version[:2] == (0, 17) and ampere and not setup.model.is_moe:
        sentence = (
            f"eager mode for dense models on SM 8.6 was `required` with vLLM {setup.version}; elsewhere it costs "
            "1.7 to 6 times"
        )
        return Finding("eager", "depends", sentence, f"{SWARM}; {QUAD_3090}", "another version of vLLM with graphs")
    sentence = (
        f"{setup.model.id} without CUDA graphs: 25 against 43 tok/s in one write-up, 11.7 against 72.2 in another"
    )
    return Finding(
        "eager", "costs", sentence, f"{DUAL_3090}; {QUAD_3090}", "fewer sequences or less utilization, with graphs"
    )


def sequences_captured(setup: Setup, rig: Rig) -> Finding | None:
    """Graphs are recorded for some batch sizes; each costs memory, and what is above the largest runs without."""
    cards = used_cards(setup, rig)
    if not setup.graphs or setup.engine not in ("vllm", "sglang") or not cards:
        return None
    depth = drafts(setup)
    slots = setup.slots or defaults(setup.engine, cards[0]).slots
    tokens, sizes = slots * (1 + depth), capture_sizes(slots, depth)
    if tokens > LARGEST_CAPTURE:
        sentence = (
            f"{slots} sequences x {1 + depth} tokens are more than the largest recorded batch of "
            f"{LARGEST_CAPTURE}: those run without graphs"
        )
        return Finding(
            "captured-sizes",
            "costs",
            sentence,
            "vLLM compilation config",
            f"at most {LARGEST_CAPTURE // (1 + depth)} sequences",
        )
    if setup.slots is None and setup.model.is_hybrid:
        size = format_bytes(graph_bytes(setup, cards[0], slots))
        sentence = f"the default of {slots} sequences records {len(sizes)} batch sizes of {setup.model.id}: {size}"
        return Finding("captured-sizes", "costs", sentence, DUAL_3090, "as many slots as there are agents, such as 8")
    return Finding(
        "captured-sizes",
        "fine",
        f"{slots} sequences: {len(sizes)} batch sizes are recorded, up to {sizes[-1]}",
        "vLLM compilation config",
    )


def expert_workspace(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    slots = setup.slots
    if (
        setup.engine != "vllm"
        or not setup.model.is_moe
        or setup.layout.ep <= 1
        or slots is None
        or slots <= SAFE_EXPERT_SLOTS
    ):
        return None
    sentence = (
        f"{slots} sequences with EP={setup.layout.ep}: on 2x 3090 more than {SAFE_EXPERT_SLOTS} died with "
        "`Workspace is locked` "
        "(448 MB wanted, 256 MB there) once they really ran"
    )
    return Finding(
        "expert-workspace", "depends", sentence, DUAL_3090, f"{SAFE_EXPERT_SLOTS} sequences, or fewer batched tokens"
    )


def linear_scratch(setup: Setup, rig: Rig) -> Finding | None:
    cards = used_cards(setup, rig)
    if not setup.model.is_hybrid or not gpu_engine(setup) or not cards:
        return None
    default = defaults(setup.engine, cards[0])
    slots, tokens = setup.slots or default.slots, setup.batched_tokens or default.batched_tokens
    use = setup.utilization or default.utilization
    size = format_bytes(scratch_bytes(setup, slots, tokens))
    if use > SAFE_HYBRID_UTILIZATION and slots > 1:
        sentence = (
            f"{setup.model.id} needs {size} of scratch that the engine's budget does not see: at {use:g} with "
            f"{slots} sequences it ran out"
        )
        return Finding(
            "linear-scratch", "depends", sentence, f"{DUAL_3090}; vllm issue 54775", f"{SAFE_HYBRID_UTILIZATION:g}"
        )
    if tokens >= LARGE_PREFILL:
        sentence = (
            f"{tokens} batched tokens need {size} of scratch outside the budget: at 8192 a 64-layer hybrid died "
            "on a 6K prompt"
        )
        return Finding("linear-scratch", "costs", sentence, "vllm issue 52872", "3072 batched tokens")
    return Finding(
        "linear-scratch",
        "fine",
        f"{size} of scratch for {tokens} batched tokens is outside the budget of {use:g}",
        "vllm issue 54775",
    )


def speculation_possible(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    spec, model = setup.spec, setup.model
    if spec is None:
        return None
    if spec.depth < 1:
        return Finding("speculation", "refused", f"a depth of {spec.depth} drafts nothing", "arithmetic", "1 or more")
    if setup.engine == "ollama":
        return Finding(
            "speculation",
            "refused",
            f"ollama has no speculation, {spec} was asked for",
            "Ollama documentation",
            "--engine llamacpp or --engine vllm",
        )
    if spec.method == "mtp" and not model.mtp_layers:
        return Finding(
            "speculation",
            "refused",
            f"{model.id} has no MTP layers to draft with, {spec} was asked for",
            "the model's configuration",
            "--spec ngram:4, or none",
        )
    if spec.method == "mtp" and gguf_engine(setup):
        sentence = f"{spec} in {setup.engine}: since May 2026, with a GGUF that kept its MTP layers"
        return Finding("speculation", "depends", sentence, "llama.cpp pull 22673", "a GGUF made with MTP")
    if spec.method in ("draft", "eagle", "dflash"):
        sentence = f"{spec} needs a draft trained for {model.id}, whose memory is not counted here"
        return Finding("speculation", "depends", sentence, "vLLM documentation, speculative decoding", None)
    return None


def speculation_pays(setup: Setup, rig: Rig) -> Finding | None:
    spec, model = setup.spec, setup.model
    if spec is None or spec.depth < 1 or (spec.method == "mtp" and not model.mtp_layers):
        return None
    ampere = any(card.family == "ampere" for card in used_cards(setup, rig))
    if model.is_moe:
        small = model.params_active < 5e9
        if ampere and small:
            sentence = (
                f"{spec} on {model.id} and Ampere: none of 19 configurations was faster than none, vLLM ran out "
                "of memory"
            )
            return Finding("speculation-gain", "costs", sentence, f"{DUAL_3090}, citing thc1006", "no speculation")
        sentence = (
            f"{spec} on {model.id}: each drafted token wakes experts of its own, and the draft layers contain experts"
        )
        return Finding("speculation-gain", "depends", sentence, DUAL_3090, "measure with and without")
    if spec.depth > DEEPEST_GAIN:
        sentence = f"{spec} on {model.id}: n={DEEPEST_GAIN} was the peak on a dense 27B (113 tok/s), n=6 fell to 105"
        return Finding("speculation-gain", "costs", sentence, DUAL_3090, f"n={DEEPEST_GAIN}")
    if setup.slots is not None and setup.slots >= CROWD:
        sentence = (
            f"{spec} with {setup.slots} sequences: drafts compete with other sequences for the same step, the "
            "gain shrinks"
        )
        return Finding("speculation-gain", "costs", sentence, DUAL_3090, "n=3 or fewer under load")
    if spec.method != "mtp":
        sentence = f"{spec} on the dense {model.id}: the gain depends on how much the text repeats or the draft agrees"
        return Finding(
            "speculation-gain", "depends", sentence, "vLLM documentation, speculative decoding", "measure it"
        )
    sentence = f"{spec} on the dense {model.id}: 47 tok/s at n=1, 89 at n=3, 100 at n=5 on one 3090"
    return Finding("speculation-gain", "fine", sentence, DUAL_3090)


def chunked_prefill(setup: Setup, rig: Rig) -> Finding | None:
    cards = used_cards(setup, rig)
    if setup.engine != "vllm" or setup.batched_tokens is None or not cards:
        return None
    slots = setup.slots or defaults("vllm", cards[0]).slots
    if setup.batched_tokens < slots:
        sentence = f"{setup.batched_tokens} batched tokens are fewer than {slots} sequences"
        return Finding(
            "chunked-prefill", "refused", sentence, "vLLM SchedulerConfig", f"at least {slots} batched tokens"
        )
    if setup.batched_tokens < 1024:
        sentence = f"prompts are read in chunks of {setup.batched_tokens} tokens: steady decoding, slow first tokens"
        return Finding("chunked-prefill", "costs", sentence, "vLLM documentation, chunked prefill", "2048")
    return Finding(
        "chunked-prefill",
        "fine",
        f"prompts are read in chunks of at most {setup.batched_tokens} tokens beside decoding",
        SWARM,
    )


def prefix_cache(setup: Setup, rig: Rig) -> Finding | None:  # noqa: ARG001
    if not setup.model.is_hybrid or setup.engine != "vllm":
        return None
    spec = f" and {setup.spec} found no hits in one report" if setup.spec else ""
    sentence = f"prefix cache on the hybrid {setup.model.id} hits whole blocks of some 1600 tokens only{spec}"
    return Finding(
        "prefix-cache",
        "depends",
        sentence,
        "vllm pull 30877, issue 38898; club-3090 issue 356",
        "--mamba-cache-mode align",
    )


def driver(setup: Setup, rig: Rig) -> Finding | None:
    card = next((c for c in used_cards(setup, rig) if c.vendor == "nvidia"), None)
    version = version_of(setup.version)
    if setup.engine != "vllm" or card is None or (version is not None and version[:2] < (0, 19)):
        return None
    sentence = f"vLLM {setup.version or 'of 2026'} is built for CUDA 12.9 or 13: {card.id} needs driver 575 or newer"
    return Finding("driver", "depends", sentence, DUAL_3090, "nvidia-smi shows the driver")
