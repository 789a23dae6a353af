"""A plan as launches, as the lines that somebody types (the adapters' own words, nothing else),
and as JSON.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from skep.catalog.models import checkpoint_of
from skep.catalog.presets import Draft, EngineOptions, Preset
from skep.catalog.tool_calling import (
    TOLD_PARSERS,
    ToolCalling,
    find_tool_calling,
    usable,
    with_template,
)
from skep.config.presets import shipped_preset
from skep.deploy.plan_request import PlanAnswer, PlanFlags, PresetAnswer
from skep.engines.adapter import DRAFTED_BY_MODEL, adapter_of
from skep.engines.base import Launch
from skep.engines.discovery import bare_words, engine_kinds, find_program, is_installed, version_of
from skep.paths import HOST
from skep.planner.candidates import USUAL_RAM_GIB
from skep.planner.choose import Plan, PlanChoice
from skep.planner.memory import KV_POOL, memory, weights_bytes
from skep.planner.published import draft_failure
from skep.planner.ranking import Predicted
from skep.planner.rules import capability, used_cards
from skep.planner.setup import Rig, Setup, of_machines
from skep.units import format_bytes

FIRST_PORT = 8001
_KV = {
    ("vllm", "int8"): "int8_per_token_head",
    ("vllm", "turboquant_3bit"): "turboquant_3bit_nc",
    ("sglang", "fp8"): "fp8_e4m3",
}
_SOURCES = 3  # that are named
# set where skep starts it; nobody types them
_SILENT = {
    "CUDA_DEVICE_ORDER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE",
    "OLLAMA_NOPRUNE", "OLLAMA_NO_CLOUD",
}  # fmt: skip


def checkpoint_name(setup: Setup) -> str:
    """Stands for the user's own files: which checkpoint to take is not known here."""
    if setup.engine == "ollama":
        return setup.model.id
    ending = ".gguf" if setup.engine == "llamacpp" else ""
    return f"path/to/{setup.model.id}-{setup.quant.id.removeprefix('gguf_')}{ending}"


def options_of_setup(setup: Setup, rig: Rig) -> EngineOptions:
    """Quantization is not named: every one of these engines finds it in the checkpoint."""
    layout = setup.layout
    cards = used_cards(setup, rig)
    llama = setup.engine in ("llamacpp", "ollama")
    eight_six = layout.tp > 1 and any(capability(card) == 8.6 for card in rig.cards)
    shares = tuple(card.memory_gib for card in rig.cards[: layout.pp])
    draft = None
    if setup.spec is not None:
        ending = ".gguf" if llama else ""
        if setup.spec.method in DRAFTED_BY_MODEL:
            model = f"path/to/draft{ending}"
        else:
            model = None
        draft = Draft(setup.spec.method, setup.spec.depth, model)
    return EngineOptions(
        dtype="half" if not llama and any("bf16" not in card.formats for card in cards) else None,
        kv=None
        if setup.kv.family == "half"
        else _KV.get((setup.engine, setup.kv.id), setup.kv.id),
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep > 1,
        memory_share=None if llama else setup.utilization,
        graphs=None if setup.graphs else False,
        batched_tokens=setup.batched_tokens,
        draft=draft,
        text_only=not setup.vision and setup.model.vision_params > 0,
        custom_all_reduce=False if eight_six and not llama else None,
        cpu_moe=setup.cpu_moe or None,
        card_shares=shares
        if setup.engine == "llamacpp" and layout.pp > 1 and len(set(shares)) > 1
        else (),
    )


def launches_of(
    setup: Setup, rig: Rig, *, checkpoint: str | None = None, order: Sequence[int] = ()
) -> tuple[Launch, ...]:
    """One a replica, its cards and port its own.

    `order`: the machine's numbers of the rig's cards, if rearranged.
    """
    cards_each = setup.layout.cards_each
    numbers = tuple(order) or tuple(range(len(rig.cards)))
    return tuple(
        Launch(
            name=f"{setup.model.id}-{replica}",
            engine=setup.engine,
            model=setup.model.id,
            weights=None,
            slots=setup.slots or 1,
            context_tokens=setup.context or 0,
            threads=0,
            port=FIRST_PORT + replica,
            checkpoint=checkpoint or checkpoint_name(setup),
            options=options_of_setup(setup, rig),
            gpus=numbers[replica * cards_each : (replica + 1) * cards_each]
            if len(rig.cards) > 1
            else (),
        )
        for replica in range(setup.layout.replicas)
    )


def command_lines(
    setup: Setup,
    rig: Rig,
    *,
    checkpoint: str | None = None,
    order: Sequence[int] = (),
    preset: Preset | None = None,
) -> tuple[str, ...]:
    """Return one shell line a replica; none where its cards are in several machines.

    `preset`: with all its flags.
    """
    if of_machines(rig):
        return ()  # engines find each other over a network in ways of their own
    adapter = adapter_of(setup.engine, rig.cards[0].vendor)
    lines = []
    for launch in launches_of(setup, rig, checkpoint=checkpoint, order=order):
        if preset is not None:
            launch = replace(launch, options=preset.options, extra=preset.extra, env=preset.env)  # noqa: PLW2901
        shown = {
            name: value
            for name, value in adapter.environment(launch).items()
            if name not in _SILENT
        }
        variables = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        words = [*bare_words(launch.engine, launch.binary), *adapter.arguments(launch)]
        lines.append(" ".join([*variables, shlex.join(words)]))
    return tuple(lines)


def up_line(name: str, setup: Setup, checkpoint: str | None, agents: int) -> str:
    """Return the `skep up` that starts just this, all choices pinned."""
    layout = setup.layout
    words = ["skep", "up", name, "-c", str(agents), "--engine", setup.engine]
    if checkpoint != name:
        words += ["--checkpoint", checkpoint or checkpoint_name(setup)]
    words += ["--quant", setup.quant.id, "--tp", str(layout.tp)]
    words += ["--pp", str(layout.pp)] if layout.pp > 1 else []
    words += [
        "--replicas",
        str(layout.replicas),
        "--slots",
        str(setup.slots),
        "--context",
        str(setup.context),
    ]
    words += ["--kv", setup.kv.id] if setup.kv.family != "half" else []
    words += ["--memory-share", f"{setup.utilization:g}"] if setup.utilization else []
    if setup.spec is not None or setup.model.mtp_layers:
        words += ["--spec", f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else "none"]
    words += [] if setup.graphs else ["--no-graphs"]
    words += (
        ["--vision"]
        if setup.vision and setup.engine == "vllm" and setup.model.vision_params
        else []
    )
    return shlex.join(words)


def gateway_line(setup: Setup, rig: Rig) -> str | None:
    """Return one endpoint for all replicas; None where there is but one engine."""
    if setup.layout.replicas < 2 or setup.slots is None or of_machines(rig):
        return None
    urls = " ".join(
        f"--upstream http://{HOST}:{FIRST_PORT + n}" for n in range(setup.layout.replicas)
    )
    return f"skep gateway {urls} --slots {setup.slots}"


def document(found: PlanAnswer) -> dict[str, Any]:
    """Return the JSON of docs/plan.md."""
    return {
        "model": found.model.geometry.id,
        "goal": {**to_builtins(found.goal), "limits": dict(found.goal.limits)},
        "rigs": [_rig_document(choice) for choice in found.choices],
        "plans": [plan_document(found, choice, plan) for choice, plan in found.ranked],
        "rejected": [
            {"rig": choice.rig.title, **_renamed(rejected)}
            for choice in found.choices
            for rejected in choice.rejected
        ],
        "notes": found.notes,
        "preset": None if found.preset is None else _preset_document(found.preset),
    }


def _preset_document(answer: PresetAnswer) -> dict[str, Any]:
    figures = [
        {**to_builtins(figure), "off": round(figure.off, 4) + 0.0} for figure in answer.figures
    ]
    return {"name": answer.preset.name, "source": answer.preset.source, "figures": figures}


def _rig_document(choice: PlanChoice) -> dict[str, Any]:
    rig = choice.rig
    if choice.rig.default_link:
        link = to_builtins(choice.rig.default_link)
    else:
        link = None
    pairs = [
        {"cards": [choice.order[a], choice.order[b]], **to_builtins(one)}
        for a, b, one in rig.pairs
    ]
    cards = {"cards": [card.id for card in rig.cards], "numbers": choice.order}
    reason = {"first_because": choice.first_because}
    return {"rig": rig.title, **cards, "link": link, "pairs": pairs, "price": rig.price, **reason}


def _renamed(record: Any) -> dict[str, Any]:
    """Return a record of the planner with the keys of the document."""
    names = {"layout": "topology", "name": "term"}
    return {names.get(key, key): value for key, value in to_builtins(record).items()}


def _rounded(point: Predicted) -> dict[str, float]:
    return {
        key: round(n, 2 if key == "ttft_ms" else 4)
        for key, n in to_builtins(point).items()
        if key != "band_why"
    }


def rests_on(plan: Plan) -> str:
    """Return what its figures rest on, in one word: a calibration, a sweep in the store, or
    published measurements.
    """
    return plan.rated.prospect.step.tuning.rests_on


def plan_document(found: PlanAnswer, choice: PlanChoice, plan: Plan) -> dict[str, Any]:
    setup = plan.setup
    held = plan.memory
    at = plan.rated.outcome.effective_tok_s
    return {
        "rig": choice.rig.title,
        "engine": setup.engine,
        "topology": to_builtins(setup.layout),
        "quant": setup.quant.id,
        "kv_dtype": setup.kv.id,
        "slots": setup.slots,
        "spec": f"{setup.spec.method}:{setup.spec.depth}" if setup.spec else None,
        "context": setup.context,
        "context_each": plan.rated.context_each,
        "utilization": setup.utilization,
        "graphs": setup.graphs,
        "memory": [_renamed(term) for term in held.terms],
        "card_bytes": held.usable_bytes,
        "largest_context": plan.largest_context,
        "predicted": [_rounded(point) for point in plan.predicted],
        "rests_on": rests_on(plan),
        "meets_slo": plan.rated.over_limit <= 1.0 if found.goal.limits else None,
        "checkpoint": plan.checkpoint,
        "published": plan.rated.published,
        "keeps_promise": plan.rated.keeps_promise,
        "caveats": caveats(found, plan),
        "up": start_line(found, plan),
        "launch": commands_of(found, plan),
        "gateway": gateway_line(setup, plan.rated.rig),
        "why": plan.why,
        "rules": [to_builtins(finding) for finding in plan.rated.findings],
        "price": choice.rig.price,
        "tok_s_per_price": round(at / choice.rig.price, 4) if choice.rig.price else None,
    }


def start_line(found: PlanAnswer, plan: Plan) -> str | None:
    """Return the `skep up` of a plan; None where its cards are in several machines."""
    if of_machines(plan.rated.rig):
        return None
    if found.preset is not None:
        return _preset_line(found.flags)
    return up_line(found.flags.model, plan.setup, plan.checkpoint, found.goal.agents)


def _preset_line(flags: PlanFlags) -> str:
    """Return the `skep up` of a preset, with what was typed of it."""
    typed: dict[str, int | float | str | None]
    typed = {"--slots": flags.slots, "--context": flags.context, "--replicas": flags.replicas}
    typed |= {"--kv": flags.kv, "--memory-share": flags.utilization}
    words = ["skep", "up", flags.model]
    for option, value in typed.items():
        words += [option, str(value)] if value is not None else []
    if flags.graphs is not None:
        words += ["--graphs" if flags.graphs else "--no-graphs"]
    words += ["--vision"] if flags.vision else []
    return shlex.join(words)


def download_bytes(plan: Plan) -> int:
    """As the catalogue knows it, else counted from the model's geometry."""
    if plan.checkpoint:
        known = checkpoint_of(plan.checkpoint)
    else:
        known = None
    if known is not None and known.disk_gb is not None:
        return int(known.disk_gb * 1e9)
    return weights_bytes(plan.setup.model, plan.setup.quant)


def caveats(found: PlanAnswer, plan: Plan) -> list[str]:
    """Return what a user must know before the start, what matters most first."""
    rated = plan.rated
    setup = plan.setup
    goal = found.goal
    said: list[str] = list(found.preset.cautions) if found.preset is not None else []
    if plan.checkpoint:
        known = checkpoint_of(plan.checkpoint)
    else:
        known = None
    if not rated.published:
        said.append(
            f"{setup.quant.title} of {setup.model.id} would be best, but no such checkpoint "
            "is known"
        )
    elif plan.checkpoint is None:
        said.append(f"skep knows no checkpoint of {setup.model.id}: name yours with --checkpoint")
    # Whose first it is.
    choice = next((choice for choice in found.choices if choice.plans[:1] == (plan,)), None)
    said += filter(None, [agent_caveat(found, plan)])
    if not rated.holds_all:
        at_once = (setup.slots or 1) * setup.layout.replicas
        waiting = (
            f"memory is enough for {at_once} of {goal.agents} agents at once, the others wait"
        )
        costs = choice.room_costs if choice is not None else None
        said.append("; ".join(filter(None, [waiting, costs])))
    if rated.on_paper:
        said.append(
            "it fits on paper only: less than the larger of 1 GiB and 5 % of a card is left"
        )
    if choice is not None and choice.idle is not None:
        said.append(choice.idle)
    if setup.cpu_moe:
        if rated.rig.ram_gib:
            ram = ""
        else:
            ram = f" ({USUAL_RAM_GIB} GiB are assumed)"
        layers = f"{setup.cpu_moe} of {setup.model.expert_layers} layers"
        said.append(
            f"experts of {layers} stay in system memory{ram}: how fast they are is least certain"
        )
    if of_machines(rated.rig):
        said.append(
            f"{rated.rig.title} is several machines: {setup.engine}'s documentation says "
            "how to join them"
        )
    if not found.flags.gpu and not is_installed(setup.engine):
        said.append(
            f"{setup.engine} is not installed here: {engine_kinds()[setup.engine].install}"
        )
    if known is not None and known.gated:
        said.append(f"{known.hub} is gated: accept its licence on its page, and set HF_TOKEN")
    if known is not None and known.origin.confidence == "C":
        said.append(f"the checkpoint {known.hub} is not confirmed")
    said += filter(None, [rated.no_start or _left_out_drafts(plan)])
    if rated.rig.title in found.published:
        said.append(found.published[rated.rig.title])
    spared = vision_bytes(plan)
    if spared:
        said.append(
            f"image input is off, which saves {format_bytes(spared)} a card; --vision turns it on"
        )
    said += [f.sentence for f in rated.findings if f.verdict == "costs"]
    said += [f.sentence for f in rated.findings if f.verdict == "depends"]
    said += filter(None, [_correction_words(plan)])
    said += author_notes(plan)
    return list(dict.fromkeys(said))


def _left_out_drafts(plan: Plan) -> str | None:
    """Return why a plan has no drafts although its model has the layers for them; None where
    nothing is known.
    """
    setup = plan.setup
    failure = draft_failure(setup, plan.rated.rig)
    if setup.spec is not None or failure is None:
        return None
    where = f"{failure.engine} on {failure.cards}"
    return f"without drafts: they did not start in {where}, says {failure.source}: {failure.why}"


def _correction_words(plan: Plan) -> str | None:
    """Return whose rows correct the figures of a plan, and by how much; None where none do."""
    corrected = plan.rated.corrected
    if corrected is None:
        return None
    sources = list(dict.fromkeys(row.source for row in corrected.rows))
    if len(sources) > _SOURCES:
        more = f" and {len(sources) - _SOURCES} more"
    else:
        more = ""
    words = f"figures corrected by rows of this layout ({', '.join(sources[:_SOURCES])}{more})"
    return f"{words}: decode steps take {corrected.factor:.2f}x as long as the formulas say"


def author_notes(plan: Plan) -> list[str]:
    """Return what the presets say that measured just this layout in this format."""
    if plan.rated.corrected is not None:
        rows = plan.rated.corrected.rows
    else:
        rows = ()
    names = dict.fromkeys(
        row.source.removeprefix("preset ") for row in rows if row.is_of(plan.setup)
    )
    notes = {name: preset.notes for name in names if (preset := shipped_preset(name)) is not None}
    return [f"preset {name}: {note}" for name, said in notes.items() for note in said]


def agent_caveat(found: PlanAnswer, plan: Plan) -> str | None:
    """Return why agents cannot call tools with it, or not reliably; None: they can, or nothing is
    known against it.
    """
    setup = plan.setup
    engine = setup.engine
    model = setup.model.id
    calling = find_tool_calling(engine, model, plan.checkpoint)
    was_read = plan.checkpoint == found.model.checkpoint
    takes_tools = found.model.takes_tools if was_read else None
    if calling is None and takes_tools is not False:
        wants_parser = engine in TOLD_PARSERS
        text = f"no tool parser of {engine} is known for {model}: name one with tool_parser"
        return text if wants_parser else None
    calling = with_template(calling or ToolCalling(), engine, takes_tools=takes_tools)
    here = not found.flags.gpu and calling.since and is_installed(engine)
    calling = usable(calling, engine, version=version_of(find_program(engine)) if here else None)
    if calling.why_not is not None:
        return f"agents cannot call tools with it on {engine}: {calling.why_not}"
    if calling.unreliable:
        return f"agents' tool calls are unreliable with it: {calling.unreliable}"
    return None


def vision_bytes(plan: Plan) -> int:
    """Return what the vision tower would take of a card, where it is left out."""
    setup = plan.setup
    card = plan.rated.card
    if setup.vision or not setup.model.vision_params:
        return 0
    sizes = (
        memory(replace(setup, vision=on), card, context=setup.context or 0) for on in (True, False)
    )
    with_tower, without = (sum(t.bytes for t in size.terms if t.name != KV_POOL) for size in sizes)
    return with_tower - without


def commands_of(found: PlanAnswer, plan: Plan) -> tuple[str, ...]:
    preset = found.preset.preset if found.preset is not None else None
    return command_lines(
        plan.setup, plan.rated.rig, checkpoint=plan.checkpoint, order=plan.order, preset=preset
    )
