"""A planned setup as launches, and launches as the lines that somebody types: the adapters' own words, nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from skep.catalog.presets import Draft, EngineOptions
from skep.engines.adapter import DRAFTED_BY_MODEL, Adapter
from skep.engines.base import Launch, engine_named
from skep.engines.discovery import bare_words
from skep.paths import HOST
from skep.planner.rigs import of_machines
from skep.planner.rules import capability, used_cards
from skep.planner.setup import Rig, Setup

FIRST_PORT = 8001
_RPC_PORT = 50052  # of llama.cpp's rpc-server
_KV = {
    ("vllm", "int8"): "int8_per_token_head",
    ("vllm", "turboquant_3bit"): "turboquant_3bit_nc",
    ("sglang", "fp8"): "fp8_e4m3",
}
_SILENT = {"CUDA_DEVICE_ORDER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "OLLAMA_NOPRUNE",
           "OLLAMA_NO_CLOUD"}  # fmt: skip  # set where skep starts it; nobody types them


def checkpoint_name(setup: Setup) -> str:
    """Stands for the user's own files: which checkpoint to take is not known here."""
    if setup.engine == "ollama":
        return setup.model.id
    ending = ".gguf" if setup.engine == "llamacpp" else ""
    return f"path/to/{setup.model.id}-{setup.quant.id.removeprefix('gguf_')}{ending}"


def shares_experts(setup: Setup) -> bool:
    """Replicas that spread one set of experts over all of them are one engine with data parallelism."""
    return setup.layout.replicas > 1 and setup.layout.ep > setup.layout.tp


def options_of_setup(setup: Setup, rig: Rig) -> EngineOptions:
    """Quantization is not named: every one of these engines finds it in the checkpoint."""
    layout, cards = setup.layout, used_cards(setup, rig)
    llama = setup.engine in ("llamacpp", "ollama")
    eight_six = layout.tp > 1 and any(capability(card) == 8.6 for card in rig.cards)
    shares = tuple(card.memory_gib for card in rig.cards[: layout.pp])
    draft = None
    if setup.spec is not None:
        ending = ".gguf" if llama else ""
        model = f"path/to/draft{ending}" if setup.spec.method in DRAFTED_BY_MODEL else None
        draft = Draft(setup.spec.method, setup.spec.depth, model)
    return EngineOptions(
        dtype="half" if not llama and any("bf16" not in card.formats for card in cards) else None,
        kv=None if setup.kv.family == "half" else _KV.get((setup.engine, setup.kv.id), setup.kv.id),
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.replicas if shares_experts(setup) else 1,
        ep=layout.ep > 1,
        memory_share=None if llama else setup.utilization,
        graphs=None if setup.graphs else False,
        batched_tokens=setup.batched_tokens,
        draft=draft,
        text_only=not setup.vision and setup.model.vision_params > 0,
        custom_all_reduce=False if eight_six and not llama else None,
        cpu_moe=setup.cpu_moe or None,
        card_shares=shares if setup.engine == "llamacpp" and layout.pp > 1 and len(set(shares)) > 1 else (),
    )


def launches_of(
    setup: Setup, rig: Rig, *, checkpoint: str | None = None, order: Sequence[int] = ()
) -> tuple[Launch, ...]:
    """One a replica, its cards and port its own. `order`: the machine's numbers of the rig's cards, if rearranged."""
    together = shares_experts(setup)
    replicas = 1 if together else setup.layout.replicas
    each = setup.layout.cards if together else setup.layout.cards_each
    numbers = tuple(order) or tuple(range(len(rig.cards)))
    apart = of_machines(rig)
    return tuple(
        Launch(
            name=f"{setup.model.id}-{replica}",
            engine=setup.engine,
            model=setup.model.id,
            weights=None,
            slots=(setup.slots or 1) * (setup.layout.replicas if together else 1),
            context_tokens=setup.context or 0,
            threads=0,
            port=FIRST_PORT + (0 if apart else replica),
            checkpoint=checkpoint or checkpoint_name(setup),
            options=options_of_setup(setup, rig),
            gpus=numbers[replica * each : (replica + 1) * each] if len(rig.cards) > 1 and not apart else (),
        )
        for replica in range(replicas)
    )


def command_lines(
    setup: Setup, rig: Rig, *, checkpoint: str | None = None, order: Sequence[int] = ()
) -> tuple[str, ...]:
    """Return one shell line a replica, or a machine."""
    adapter = adapter_of(setup.engine, rig.cards[0].vendor)
    launches = launches_of(setup, rig, checkpoint=checkpoint, order=order)
    if of_machines(rig):
        return tuple(
            line
            for first, launch in zip(range(0, setup.layout.cards, setup.layout.cards_each), launches, strict=False)
            for line in _on_machines(adapter, launch, setup.layout.cards_each, first)
        )
    lines = []
    for launch in launches:  # with the variables that a person needs, and without those that skep sets for its own
        shown = {name: value for name, value in adapter.environment(launch).items() if name not in _SILENT}
        words = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        lines.append(" ".join([*words, shlex.join(_words(adapter, launch))]))
    return tuple(lines)


def adapter_of(engine: str, vendor: str = "nvidia") -> Adapter:
    """Return the adapter of an engine of others, for cards of that vendor."""
    found = engine_named(engine)
    assert isinstance(found, Adapter)
    return type(found)(vendor=vendor)


def _words(adapter: Adapter, launch: Launch) -> list[str]:
    return [*bare_words(launch.engine, launch.binary), *adapter.arguments(launch)]


def _on_machines(adapter: Adapter, launch: Launch, each: int, first: int) -> list[str]:
    """Return one line a machine, each with its name as a comment: engines find each other over the network."""
    head, lines = f"machine-{first + 1}", []
    for rank in range(each):
        words = [head if word == HOST else word for word in _words(adapter, launch)]
        if launch.engine == "vllm" and each > 1:
            words += ["--nnodes", str(each), "--node-rank", str(rank), "--master-addr", head]
            words += ["--headless"] if rank else []
        elif launch.engine == "sglang" and each > 1:
            words += ["--nnodes", str(each), "--node-rank", str(rank), "--dist-init-addr", f"{head}:20000"]
        elif launch.engine == "llamacpp" and each > 1:
            helpers = (f"machine-{first + other + 1}:{_RPC_PORT}" for other in range(1, each))
            helper = ["rpc-server", "--host", f"machine-{first + rank + 1}", "--port", str(_RPC_PORT)]
            words = helper if rank else [*words, "--rpc", ",".join(helpers)]
        lines.append(f"{shlex.join(words)} # on machine-{first + rank + 1}")
    return lines


def up_line(name: str, setup: Setup, checkpoint: str | None, agents: int) -> str:
    """Return the `skep up` that starts just this, all choices pinned."""
    layout = setup.layout
    words = ["skep", "up", name, "-c", str(agents), "--engine", setup.engine]
    if checkpoint != name:
        words += ["--checkpoint", checkpoint or checkpoint_name(setup)]
    words += ["--quant", setup.quant.id, "--tp", str(layout.tp)]
    words += ["--pp", str(layout.pp)] if layout.pp > 1 else []
    words += ["--replicas", str(layout.replicas), "--slots", str(setup.slots), "--context", str(setup.context)]
    words += ["--kv", setup.kv.id] if setup.kv.family != "half" else []
    words += ["--memory-share", f"{setup.utilization:g}"] if setup.utilization else []
    if setup.spec is not None or setup.model.mtp_layers:
        words += ["--spec", f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else "none"]
    words += ["--vision"] if setup.vision and setup.engine == "vllm" and setup.model.vision_params else []
    return shlex.join(words)


def gateway_line(setup: Setup, rig: Rig | None = None) -> str | None:
    """Return one endpoint for all replicas; None where there is but one engine."""
    if setup.layout.replicas < 2 or setup.slots is None or shares_experts(setup):
        return None
    replicas, each = range(setup.layout.replicas), setup.layout.cards_each
    where = [f"{HOST}:{FIRST_PORT + n}" for n in replicas]
    if rig is not None and of_machines(rig):
        where = [f"machine-{n * each + 1}:{FIRST_PORT}" for n in replicas]
    urls = " ".join(f"--upstream http://{one}" for one in where)
    return f"skep gateway {urls} --slots {setup.slots}"
