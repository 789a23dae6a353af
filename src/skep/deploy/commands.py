"""A plan as launches, as the lines that somebody types, and as JSON.

The lines are the adapters' own words: no engine's flags are known here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from skep.catalog.engines import engine_kinds, kind_of
from skep.catalog.models import checkpoint_of
from skep.catalog.presets import Draft, EngineOptions, Preset
from skep.catalog.tool_calling import (
    ToolCalling,
    find_tool_calling,
    usable,
    with_template,
)
from skep.config.presets import shipped_preset
from skep.deploy.kv_caveat import kv_caveat
from skep.deploy.plan_request import PlanAnswer, PlanFlags, PresetAnswer
from skep.engines.adapter import DRAFTED_BY_MODEL, adapter_of
from skep.engines.base import Launch
from skep.engines.discovery import bare_words, find_program, is_installed, version_of
from skep.paths import HOST
from skep.planner.candidates import USUAL_RAM_GIB
from skep.planner.choose import Plan, PlanChoice
from skep.planner.memory import KV_POOL, memory, weights_bytes
from skep.planner.published import draft_failure
from skep.planner.ranking import Predicted
from skep.planner.rules import capability, used_cards
from skep.planner.setup import Rig, Setup, Speculation, of_machines
from skep.units import format_bytes

FIRST_PORT = 8001
_SOURCES = 3  # so many are named
# variables that skep sets where it starts an engine; nobody types them
_SILENT = {
    "CUDA_DEVICE_ORDER", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE",
    "OLLAMA_NOPRUNE", "OLLAMA_NO_CLOUD",
}  # fmt: skip


def checkpoint_name(setup: Setup) -> str:
    """Return what stands for the user's own files: which checkpoint to take is not known here."""
    weights = kind_of(setup.engine).weights
    if weights == "store":
        return setup.model.id
    ending = ".gguf" if weights == "gguf" else ""
    return f"path/to/{setup.model.id}-{setup.quant.id.removeprefix('gguf_')}{ending}"


def options_of_setup(setup: Setup, rig: Rig) -> EngineOptions:
    """Return the options that a setup has in a launch.

    Quantization is not named: every one of these engines finds it in the checkpoint."""
    layout = setup.layout
    llama = kind_of(setup.engine).reads_gguf
    lacks_bf16 = any("bf16" not in card.formats for card in used_cards(setup, rig))
    eight_six = layout.tp > 1 and any(capability(card) == 8.6 for card in rig.cards)
    return EngineOptions(
        dtype="half" if lacks_bf16 and not llama else None,
        kv=_kv_option(setup),
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep > 1,
        memory_share=None if llama else setup.utilization,
        graphs=None if setup.graphs else False,
        batched_tokens=setup.batched_tokens,
        draft=_draft_option(setup.spec, ending=".gguf" if llama else ""),
        text_only=not setup.vision and setup.model.vision_params > 0,
        custom_all_reduce=False if eight_six and not llama else None,
        cpu_moe=setup.cpu_moe or None,
        card_shares=_card_shares(setup, rig),
    )


def _kv_option(setup: Setup) -> str | None:
    if setup.kv.family == "half":
        return None
    words = kind_of(setup.engine).kv_words
    return words.get(setup.kv.id, setup.kv.id)


def _draft_option(spec: Speculation | None, ending: str) -> Draft | None:
    if spec is None:
        return None
    model = None
    if spec.method in DRAFTED_BY_MODEL:
        model = f"path/to/draft{ending}"
    return Draft(spec.method, spec.depth, model)


def _card_shares(setup: Setup, rig: Rig) -> tuple[float, ...]:
    """Return the memory of each card where layers are divided over unlike ones."""
    shares = tuple(card.memory_gib for card in rig.cards[: setup.layout.pp])
    are_unlike = len(set(shares)) > 1
    if are_unlike and kind_of(setup.engine).takes("card_shares"):
        return shares
    return ()


def launches_of(
    setup: Setup, rig: Rig, *, checkpoint: str | None = None, order: Sequence[int] = ()
) -> tuple[Launch, ...]:
    """Return a launch for each replica, with cards and a port of its own.

    `order`: the machine's numbers of the rig's cards, if rearranged.
    """
    cards_each = setup.layout.cards_each
    numbers: tuple[int, ...] = ()  # one card needs no number
    if len(rig.cards) > 1:
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
            gpus=numbers[replica * cards_each : (replica + 1) * cards_each],
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
    """Return a shell line for each replica; none where its cards are in several machines.

    `preset`: whose options, flags and variables are taken.
    """
    if of_machines(rig):
        return ()  # engines find each other over a network in ways of their own
    adapter = adapter_of(setup.engine, rig.cards[0].vendor)
    lines = []
    for planned in launches_of(setup, rig, checkpoint=checkpoint, order=order):
        launch = planned
        if preset is not None:
            launch = replace(launch, options=preset.options, extra=preset.extra, env=preset.env)
        typed_variables = {
            name: value
            for name, value in adapter.environment(launch).items()
            if name not in _SILENT
        }
        variables = [f"{name}={shlex.quote(value)}" for name, value in typed_variables.items()]
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
    if layout.pp > 1:
        words += ["--pp", str(layout.pp)]
    words += [
        "--replicas",
        str(layout.replicas),
        "--slots",
        str(setup.slots),
        "--context",
        str(setup.context),
    ]
    if setup.kv.family != "half":
        words += ["--kv", setup.kv.id]
    if setup.utilization:
        words += ["--memory-share", f"{setup.utilization:g}"]
    if setup.spec is not None:
        words += ["--spec", f"{setup.spec.method}:{setup.spec.depth}"]
    elif setup.model.mtp_layers:
        words += ["--spec", "none"]
    if not setup.graphs:
        words += ["--no-graphs"]
    can_leave_it_out = kind_of(setup.engine).takes("text_only")
    if setup.vision and can_leave_it_out and setup.model.vision_params:
        words += ["--vision"]
    return shlex.join(words)


def gateway_line(setup: Setup, rig: Rig) -> str | None:
    """Return the line of a gateway in front of all replicas; None where there is only one
    engine.
    """
    if setup.layout.replicas < 2 or setup.slots is None or of_machines(rig):
        return None
    urls = " ".join(
        f"--upstream http://{HOST}:{FIRST_PORT + n}" for n in range(setup.layout.replicas)
    )
    return f"skep gateway {urls} --slots {setup.slots}"


def document(answer: PlanAnswer) -> dict[str, Any]:
    """Return the JSON of docs/plan.md."""
    return {
        "model": answer.model.geometry.id,
        "goal": {**to_builtins(answer.goal), "limits": dict(answer.goal.limits)},
        "rigs": [_rig_document(choice) for choice in answer.choices],
        "plans": [plan_document(answer, choice, plan) for choice, plan in answer.ranked],
        "rejected": [
            {"rig": choice.rig.title, **_renamed(rejected)}
            for choice in answer.choices
            for rejected in choice.rejected
        ],
        "notes": answer.notes,
        "preset": None if answer.preset is None else _preset_document(answer.preset),
    }


def _preset_document(answer: PresetAnswer) -> dict[str, Any]:
    figures = [
        {**to_builtins(figure), "off": round(figure.off, 4) + 0.0} for figure in answer.figures
    ]
    return {"name": answer.preset.name, "source": answer.preset.source, "figures": figures}


def _rig_document(choice: PlanChoice) -> dict[str, Any]:
    rig = choice.rig
    link = to_builtins(rig.default_link) if rig.default_link else None
    pairs = [
        {"cards": [choice.order[a], choice.order[b]], **to_builtins(link_of_pair)}
        for a, b, link_of_pair in rig.pairs
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
    """Return in one word what a plan's figures rest on: a calibration, a sweep in the store or
    published measurements.
    """
    return plan.rated.prospect.step.tuning.rests_on


def plan_document(answer: PlanAnswer, choice: PlanChoice, plan: Plan) -> dict[str, Any]:
    setup = plan.setup
    held = plan.memory
    at = plan.rated.outcome.effective_tok_s
    session = plan.rated.session
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
        "sessions": to_builtins(plan.outlook) if plan.outlook is not None else None,
        "turns_per_min": round(session.turns_per_min, 4) if session is not None else None,
        "window_tokens": plan.rated.window_tokens or None,
        "rests_on": rests_on(plan),
        "meets_slo": plan.rated.over_limit <= 1.0 if answer.goal.limits else None,
        "checkpoint": plan.checkpoint,
        "published": plan.rated.published,
        "keeps_promise": plan.rated.keeps_promise,
        "caveats": caveats(answer, plan),
        "up": start_line(answer, plan),
        "launch": commands_of(answer, plan),
        "gateway": gateway_line(setup, plan.rated.rig),
        "why": plan.why,
        "rules": [to_builtins(finding) for finding in plan.rated.findings],
        "price": choice.rig.price,
        "tok_s_per_price": round(at / choice.rig.price, 4) if choice.rig.price else None,
    }


def start_line(answer: PlanAnswer, plan: Plan) -> str | None:
    """Return the `skep up` of a plan; None where its cards are in several machines."""
    if of_machines(plan.rated.rig):
        return None
    if answer.preset is not None:
        return _preset_line(answer.flags)
    return up_line(answer.flags.model, plan.setup, plan.checkpoint, answer.goal.agents)


def _preset_line(flags: PlanFlags) -> str:
    """Return the `skep up` of a preset, with what was typed of it."""
    typed: dict[str, int | float | str | None]
    typed = {"--slots": flags.slots, "--context": flags.context, "--replicas": flags.replicas}
    typed |= {"--kv": flags.kv, "--memory-share": flags.utilization}
    words = ["skep", "up", flags.model]
    for option, value in typed.items():
        if value is not None:
            words += [option, str(value)]
    if flags.graphs is not None:
        words += ["--graphs" if flags.graphs else "--no-graphs"]
    if flags.vision:
        words += ["--vision"]
    return shlex.join(words)


def download_bytes(plan: Plan) -> int:
    """Return the size of the checkpoint as the catalogue has it, else counted from the model's
    geometry.
    """
    checkpoint = checkpoint_of(plan.checkpoint) if plan.checkpoint else None
    if checkpoint is not None and checkpoint.disk_gb is not None:
        return int(checkpoint.disk_gb * 1e9)
    return weights_bytes(plan.setup.model, plan.setup.quant)


def caveats(answer: PlanAnswer, plan: Plan) -> list[str]:
    """Return what a user must know before the start, what matters most first."""
    rated = plan.rated
    # Whose first plan it is.
    choice = next((choice for choice in answer.choices if choice.plans[:1] == (plan,)), None)
    cautions = answer.preset.cautions if answer.preset is not None else ()
    sentences = [
        *cautions,
        *_unknown_checkpoint(plan),
        kv_caveat(plan, answer.kv_shown_by),
        agent_caveat(answer, plan),
        *_room_caveats(answer, plan, choice),
        *_start_caveats(answer, plan),
        rated.no_start or _left_out_drafts(plan),
        answer.published.get(rated.rig.title),
        _vision_caveat(plan),
        *(finding.sentence for finding in rated.findings if finding.verdict == "costs"),
        *(finding.sentence for finding in rated.findings if finding.verdict == "depends"),
        _correction_words(plan),
        *author_notes(plan),
    ]
    return list(dict.fromkeys(sentence for sentence in sentences if sentence is not None))


def _unknown_checkpoint(plan: Plan) -> Iterator[str]:
    setup = plan.setup
    if not plan.rated.published:
        quant = setup.quant.title
        yield f"{quant} of {setup.model.id} would be best, but no such checkpoint is known"
    elif plan.checkpoint is None:
        yield f"skep knows no checkpoint of {setup.model.id}: name yours with --checkpoint"


def _room_caveats(answer: PlanAnswer, plan: Plan, choice: PlanChoice | None) -> Iterator[str]:
    """Yield what memory does not hold, and cards that have nothing to do."""
    rated = plan.rated
    setup = plan.setup
    if not rated.holds_all:
        at_once = (setup.slots or 1) * setup.layout.replicas
        agents = answer.goal.agents
        waiting = f"memory is enough for {at_once} of {agents} agents at once, the others wait"
        costs = choice.room_costs if choice is not None else None
        yield "; ".join(filter(None, [waiting, costs]))
    if rated.on_paper:
        yield "it fits on paper only: less than the larger of 1 GiB and 5 % of a card is left"
    if choice is not None and choice.idle is not None:
        yield choice.idle
    if setup.cpu_moe:
        ram = "" if rated.rig.ram_gib else f" ({USUAL_RAM_GIB} GiB are assumed)"
        layers = f"{setup.cpu_moe} of {setup.model.expert_layers} layers"
        yield f"experts of {layers} stay in system memory{ram}: how fast they are is least certain"


def _start_caveats(answer: PlanAnswer, plan: Plan) -> Iterator[str]:
    """Yield what stands between the plan and its start: machines, the engine, the checkpoint."""
    rig = plan.rated.rig
    engine = plan.setup.engine
    if of_machines(rig):
        join = f"{engine}'s documentation says how to join them"
        yield f"{rig.title} is several machines: {join}"
    if not answer.flags.gpu and not is_installed(engine):
        yield f"{engine} is not installed here: {engine_kinds()[engine].install}"
    checkpoint = checkpoint_of(plan.checkpoint) if plan.checkpoint else None
    if checkpoint is not None and checkpoint.gated:
        yield f"{checkpoint.hub} is gated: accept its licence on its page, and set HF_TOKEN"
    if checkpoint is not None and checkpoint.origin.confidence == "C":
        yield f"the checkpoint {checkpoint.hub} is not confirmed"


def _vision_caveat(plan: Plan) -> str | None:
    spared = vision_bytes(plan)
    if not spared:
        return None
    return f"image input is off, which saves {format_bytes(spared)} a card; --vision turns it on"


def _left_out_drafts(plan: Plan) -> str | None:
    """Return why a plan has no drafts although its model has layers for them; None: not known."""
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
    others = ""
    if len(sources) > _SOURCES:
        others = f" and {len(sources) - _SOURCES} more"
    words = f"figures corrected by rows of this layout ({', '.join(sources[:_SOURCES])}{others})"
    return f"{words}: decode steps take {corrected.factor:.2f}x as long as the formulas say"


def author_notes(plan: Plan) -> list[str]:
    """Return what the presets say that measured just this layout in this format."""
    corrected = plan.rated.corrected
    rows = corrected.rows if corrected is not None else ()
    names = dict.fromkeys(
        row.source.removeprefix("preset ") for row in rows if row.is_of(plan.setup)
    )
    notes = {name: preset.notes for name in names if (preset := shipped_preset(name)) is not None}
    return [f"preset {name}: {note}" for name, texts in notes.items() for note in texts]


def agent_caveat(answer: PlanAnswer, plan: Plan) -> str | None:
    """Return why agents cannot call tools with it, or not reliably; None: nothing is known against
    it.
    """
    setup = plan.setup
    engine = setup.engine
    model = setup.model.id
    calling = find_tool_calling(engine, model, plan.checkpoint)
    was_read = plan.checkpoint == answer.model.checkpoint
    takes_tools = answer.model.takes_tools if was_read else None
    if calling is None and takes_tools is not False:
        if not kind_of(engine).told_parsers:
            return None
        return f"no tool parser of {engine} is known for {model}: name one with tool_parser"
    calling = with_template(calling or ToolCalling(), engine, takes_tools=takes_tools)
    version = None
    if not answer.flags.gpu and calling.since and is_installed(engine):
        version = version_of(find_program(engine))
    calling = usable(calling, engine, version=version)
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


def commands_of(answer: PlanAnswer, plan: Plan) -> tuple[str, ...]:
    preset = answer.preset.preset if answer.preset is not None else None
    return command_lines(
        plan.setup, plan.rated.rig, checkpoint=plan.checkpoint, order=plan.order, preset=preset
    )
