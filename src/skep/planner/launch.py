"""The command that starts a setup, one a replica, and skep's gateway in front of several.

Flags as in vLLM of August 2026 (vllm/engine/arg_utils.py), SGLang's server arguments and llama-server of June 2026.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from skep.planner.findings import capability, used_cards
from skep.planner.rig_words import of_machines
from skep.planner.setup import Rig, Setup

FIRST_PORT = 8001
_RPC_PORT = 50052  # of llama.cpp's rpc-server
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
_VLLM_KV = {"int8": "int8_per_token_head", "turboquant_3bit": "turboquant_3bit_nc"}
_VLLM_METHODS = {"draft": "draft_model", "eagle": "eagle3"}
_LLAMA_METHODS = {"mtp": "draft-mtp", "draft": "draft-simple", "eagle": "draft-eagle3", "ngram": "ngram-simple"}


def checkpoint_name(setup: Setup) -> str:
    """Stands for the user's own files: which checkpoint to take is not known here."""
    ending = ".gguf" if setup.engine == "llamacpp" else ""
    return f"path/to/{setup.model.id}-{setup.quant.id.removeprefix('gguf_')}{ending}"


def launch(setup: Setup, rig: Rig, *, checkpoint: str | None = None, order: Sequence[int] = ()) -> tuple[str, ...]:
    """One shell line a replica, or a machine. `order`: the machine's numbers of the rig's cards, where rearranged."""
    if of_machines(rig):
        return _on_machines(setup, rig, checkpoint)
    numbers = tuple(order) or tuple(range(len(rig.cards)))
    each = setup.layout.cards if shares_experts(setup) else setup.layout.cards_each
    lines = []
    for replica in range(1 if shares_experts(setup) else setup.layout.replicas):
        cards = numbers[replica * each : (replica + 1) * each]
        words = [*_environment(rig, cards), *_argv(setup, rig, FIRST_PORT + replica, checkpoint)]
        lines.append(" ".join(words))
    return tuple(lines)


def _on_machines(setup: Setup, rig: Rig, checkpoint: str | None) -> tuple[str, ...]:
    """One line a machine, each with its name as a comment: engines find each other over the network."""
    each, lines = setup.layout.cards_each, []
    for machine in range(setup.layout.cards):
        rank, head = machine % each, f"machine-{machine // each * each + 1}"
        words = _argv(setup, rig, FIRST_PORT, checkpoint)
        if setup.engine == "vllm" and each > 1:
            words += ["--nnodes", str(each), "--node-rank", str(rank), "--master-addr", head]
            words += ["--headless"] if rank else []
        elif setup.engine == "sglang" and each > 1:
            words += ["--nnodes", str(each), "--node-rank", str(rank), "--dist-init-addr", f"{head}:20000"]
        elif setup.engine == "llamacpp" and each > 1:
            helpers = (f"machine-{machine + other + 1}:{_RPC_PORT}" for other in range(1, each))
            helper = ["rpc-server", "--host", "0.0.0.0", "--port", str(_RPC_PORT)]  # noqa: S104
            words = helper if rank else [*words, "--rpc", ",".join(helpers)]
        lines.append(" ".join((*words, f"# on machine-{machine + 1}")))
    return tuple(lines)


def shares_experts(setup: Setup) -> bool:
    """Replicas that spread one set of experts over all of them are one engine with data parallelism."""
    return setup.layout.replicas > 1 and setup.layout.ep > setup.layout.tp


def gateway(setup: Setup, rig: Rig | None = None) -> str | None:
    """One endpoint for all replicas; None where there is but one engine."""
    if setup.layout.replicas < 2 or setup.slots is None or shares_experts(setup):
        return None
    replicas, each = range(setup.layout.replicas), setup.layout.cards_each
    where = [f"127.0.0.1:{FIRST_PORT + n}" for n in replicas]
    if rig is not None and of_machines(rig):
        where = [f"machine-{n * each + 1}:{FIRST_PORT}" for n in replicas]
    urls = " ".join(f"--upstream http://{one}" for one in where)
    return f"skep gateway {urls} --slots {setup.slots}"


def _environment(rig: Rig, cards: Sequence[int]) -> list[str]:
    name = _VISIBLE.get(rig.cards[0].vendor)
    return [f"{name}={','.join(map(str, cards))}"] if name and len(rig.cards) > 1 else []


def _argv(setup: Setup, rig: Rig, port: int, checkpoint: str | None) -> list[str]:
    model = checkpoint or checkpoint_name(setup)
    build = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[setup.engine]
    return [shlex.quote(word) for word in build(setup, rig, model, port)]


def _vllm(setup: Setup, rig: Rig, model: str, port: int) -> list[str]:
    layout = setup.layout
    words = ["vllm", "serve", model, "--served-model-name", setup.model.id, "--port", str(port)]
    words += ["--max-model-len", str(setup.context), "--max-num-seqs", str(setup.slots)]
    if setup.utilization is not None:
        words += ["--gpu-memory-utilization", f"{setup.utilization:g}"]
    if layout.tp > 1:
        words += ["--tensor-parallel-size", str(layout.tp)]
    if layout.pp > 1:
        words += ["--pipeline-parallel-size", str(layout.pp)]
    if layout.ep > 1:
        words.append("--enable-expert-parallel")
    if shares_experts(setup):
        words += ["--data-parallel-size", str(layout.replicas)]
    if _without_bf16(setup, rig):
        words += ["--dtype", "half"]
    if setup.kv.family != "half":
        words += ["--kv-cache-dtype", _VLLM_KV.get(setup.kv.id, setup.kv.id)]
    if layout.tp > 1 and any(capability(card) == 8.6 for card in rig.cards):
        words.append("--disable-custom-all-reduce")
    if not setup.graphs:
        words.append("--enforce-eager")
    if setup.batched_tokens is not None:
        words += ["--max-num-batched-tokens", str(setup.batched_tokens)]
    if setup.spec is not None:
        method = _VLLM_METHODS.get(setup.spec.method, setup.spec.method)
        config: dict[str, object] = {"method": method, "num_speculative_tokens": setup.spec.depth}
        if setup.spec.method in ("draft", "eagle", "dflash"):
            config["model"] = "path/to/draft"
        if setup.spec.method == "ngram":
            config["prompt_lookup_max"] = max(3, setup.spec.depth)
        words += ["--speculative-config", json.dumps(config)]
    return words


def _without_bf16(setup: Setup, rig: Rig) -> bool:
    return any("bf16" not in card.formats for card in used_cards(setup, rig))


def _sglang(setup: Setup, rig: Rig, model: str, port: int) -> list[str]:
    layout = setup.layout
    words = ["python", "-m", "sglang.launch_server", "--model-path", model, "--served-model-name", setup.model.id]
    words += ["--port", str(port), "--context-length", str(setup.context), "--max-running-requests", str(setup.slots)]
    if setup.utilization is not None:
        words += ["--mem-fraction-static", f"{setup.utilization:g}"]
    shared = layout.replicas if shares_experts(setup) else 1  # SGLang's TP counts the cards of all of them
    if layout.tp * shared > 1:
        words += ["--tp-size", str(layout.tp * shared)]
    if shared > 1:
        words += ["--dp-size", str(shared), "--enable-dp-attention"]
    if layout.pp > 1:
        words += ["--pp-size", str(layout.pp)]
    if layout.ep > 1:
        words += ["--ep-size", str(layout.ep)]
    if _without_bf16(setup, rig):
        words += ["--dtype", "half"]
    if setup.kv.family != "half":
        words += ["--kv-cache-dtype", "fp8_e4m3" if setup.kv.id == "fp8" else setup.kv.id]
    if layout.tp > 1 and any(capability(card) == 8.6 for card in rig.cards):
        words.append("--disable-custom-all-reduce")
    if not setup.graphs:
        words.append("--disable-cuda-graph")
    if setup.batched_tokens is not None:
        words += ["--chunked-prefill-size", str(setup.batched_tokens)]
    if setup.spec is not None:
        algorithm = {"mtp": "NEXTN", "eagle": "EAGLE3", "draft": "STANDALONE", "ngram": "NGRAM"}
        words += ["--speculative-algorithm", algorithm.get(setup.spec.method, setup.spec.method.upper())]
        if setup.spec.method in ("draft", "eagle", "dflash"):
            words += ["--speculative-draft-model-path", "path/to/draft"]
        if setup.spec.method != "ngram":
            words += ["--speculative-num-steps", str(setup.spec.depth), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(setup.spec.depth + 1)]
    return words


def _llamacpp(setup: Setup, rig: Rig, model: str, port: int) -> list[str]:
    """`--ctx-size` is of all slots together."""
    assert setup.context is not None
    assert setup.slots is not None
    words = ["llama-server", "--model", model, "--alias", setup.model.id, "--port", str(port)]
    words += ["--n-gpu-layers", "999", "--ctx-size", str(setup.context * setup.slots), "--parallel", str(setup.slots)]
    words += ["--flash-attn", "on"]
    if setup.layout.tp > 1:
        words += ["--split-mode", "tensor", "--fit", "off"]  # it cannot be fitted: docs/multi-gpu.md
    elif setup.layout.pp > 1:
        words += ["--split-mode", "layer"]
        shares = [f"{card.memory_gib:g}" for card in rig.cards[: setup.layout.pp]]
        if len(set(shares)) > 1:
            words += ["--tensor-split", ",".join(shares)]
    if setup.kv.family != "half":
        words += ["--cache-type-k", setup.kv.id, "--cache-type-v", setup.kv.id]
    if setup.batched_tokens is not None:
        words += ["--ubatch-size", str(setup.batched_tokens)]
    if setup.spec is not None:
        words += ["--spec-type", _LLAMA_METHODS.get(setup.spec.method, setup.spec.method)]
        words += ["--spec-draft-n-max", str(setup.spec.depth)]
        if setup.spec.method in ("draft", "eagle"):
            words += ["--model-draft", "path/to/draft.gguf"]
    return words
