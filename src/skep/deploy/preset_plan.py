"""A preset as a plan: what the planner expects of it on the cards it was measured on, or on others.

Nothing is searched for: the preset says everything. Its author ran it, so on its own cards a rule or the memory that
speaks against it is a caution; on other cards it is a reason to refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import NO_CARDS, Preset, Published, best_figure, stand_in_words
from skep.config.presets import serve_of
from skep.config.rigs import ResolvedRig
from skep.deploy.plan_request import (
    AGENTS,
    FigureBeside,
    ModelFound,
    PlanAnswer,
    PlanFlags,
    PresetAnswer,
    check_flags,
    goal_of,
    own_basis,
    read_rigs,
)
from skep.deploy.preset_setup import quant_of, setup_of_preset
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import Pins, PlanGoal, arranged, as_published, sizing_card
from skep.planner.choose import Plan, PlanChoice, Rejected, choice_of_setup
from skep.planner.memory import fits
from skep.planner.ranking import Basis
from skep.planner.rules import Finding, refusal
from skep.planner.setup import Layout, PlannedLoad, Setup, find_kv

CODING_INPUT_TOKENS, CODING_OUTPUT_TOKENS = 256, 1024  # a coding task, where the author gives no lengths
_ALONE = ("llamacpp", "ollama")  # one engine process divides itself over all cards it sees


def agents_of(preset: Preset) -> int:
    """Return how many agents its best figure was measured with."""
    best = best_figure(preset)
    return best.concurrency if best is not None else AGENTS


def lengths_of(preset: Preset) -> tuple[int, int] | None:
    """Return the prompt and answer lengths that most of its figures were measured with; None: it gives none."""
    known = [
        (figure.input_tokens, figure.output_tokens)
        for figure in preset.published
        if figure.input_tokens is not None and figure.output_tokens is not None
    ]
    return Counter(known).most_common(1)[0][0] if known else None


def answer_preset(preset: Preset, flags: PlanFlags, store: Path) -> PlanAnswer:
    """Return what `skep plan PRESET` answers. `flags`: as typed, with the preset's name where a model stands."""
    _refuse_pins(preset, flags)
    published = preset
    preset = _with_flags(published, flags)
    model, setup = _setup(preset)
    if flags.vision:
        setup = replace(setup, vision=True)
    own_cards = not flags.gpu
    if own_cards and preset.hardware == NO_CARDS:
        hint = f'name cards to plan it for: skep plan {preset.name} --gpu "2x rtx-3090"'
        raise UserError(f"the preset `{preset.name}` runs on a CPU, which skep does not plan", hint=hint)
    if own_cards:
        flags = replace(flags, gpu=(preset.hardware,), link=flags.link or preset.link)
    goal = goal_of(_with_lengths(flags, preset, setup), ModelFound(model))
    rigs, choices, cautions = read_rigs(flags), list[PlanChoice](), list[str]()
    notes = [note for rig in rigs for note in rig.notes]
    for rig in rigs:
        basis = own_basis(store, model.id, setup.quant.id, rig.rig)(setup.engine)
        notes.append(basis.note)
        choice, caution = _choice(preset, setup, rig, goal, basis, own_cards=own_cards)
        choices.append(choice)
        cautions += caution
    is_unchanged = (preset.options, preset.replicas) == (published.options, published.replicas)
    figures = tuple(_figures(preset, choices)) if own_cards and is_unchanged else ()
    beside = PresetAnswer(preset, figures, tuple(_cautions(preset, cautions)))
    told = tuple(dict.fromkeys(filter(None, notes)))
    found = ModelFound(model, checkpoint=preset.checkpoint)
    return PlanAnswer(flags, found, goal, _pins(setup), (setup.engine,), tuple(choices), told, preset=beside)


def _refuse_pins(preset: Preset, flags: PlanFlags) -> None:
    flag = next((name for name in ("engine", "quant", "spec", "tp", "pp", "ep") if getattr(flags, name)), None)
    if flag is not None:
        hint = f"`skep presets new NAME --from {preset.name}` makes a copy that you can change"
        raise UserError(f"--{flag} cannot be combined with the preset `{preset.name}`", hint=hint)


def _with_flags(preset: Preset, flags: PlanFlags) -> Preset:
    options = replace(
        preset.options,
        kv=find_kv(flags.kv).id if flags.kv else preset.options.kv,
        memory_share=flags.utilization or preset.options.memory_share,
        graphs=preset.options.graphs if flags.graphs is None else flags.graphs,
    )
    return replace(
        preset,
        options=options,
        slots=flags.slots or preset.slots,
        replicas=flags.replicas or preset.replicas,
        context_tokens=flags.context or serve_of(preset).context_tokens,
    )


def _setup(preset: Preset) -> tuple[Geometry, Setup]:
    model = find_geometry(preset.model)
    quant = quant_of(preset, model)
    if model is None or quant is None:
        what = "model" if model is None else "weight format"
        hint = "`skep catalog models` lists the models that it knows; `skep plan CONFIG.JSON` reads another one"
        raise UserError(f"skep does not know the {what} of the preset `{preset.name}`, so cannot plan it", hint=hint)
    setup = setup_of_preset(preset, model, quant)
    return model, replace(setup, quant=as_published(quant, model, setup.engine))


def _with_lengths(flags: PlanFlags, preset: Preset, setup: Setup) -> PlanFlags:
    """Return the flags with the lengths of the published figures, where none are typed, as far as the context goes."""
    most = setup.context or CODING_INPUT_TOKENS + CODING_OUTPUT_TOKENS
    prompt, answer = lengths_of(preset) or (CODING_INPUT_TOKENS, CODING_OUTPUT_TOKENS)
    answer = flags.output_tokens or min(answer, max(1, most // 2))
    prompt = flags.input_tokens or min(prompt, max(1, most - answer))
    return replace(flags, input_tokens=prompt, output_tokens=answer, context=setup.context)


def _choice(
    preset: Preset, setup: Setup, found: ResolvedRig, goal: PlanGoal, basis: Basis, *, own_cards: bool
) -> tuple[PlanChoice, list[str]]:
    """Return the plan on one rig, with what speaks against it where its author ran it all the same."""
    rig, order = arranged(found.rig)
    if setup.engine in _ALONE and setup.layout.cards == 1 and len(rig.cards) > 1 and not preset.gpus:
        setup = replace(setup, layout=Layout(pp=len(rig.cards)))
    cards, there = setup.layout.cards, len(rig.cards)
    if cards > there:
        needs = f"the preset `{preset.name}` needs {cards} cards ({setup.layout})"
        hint = f"it was measured on {preset.hardware}; `skep plan {preset.model} --gpu RIG` finds what {there} can do"
        raise DoesNotFit(f"{needs}, `{found.rig.title}` has {there}", hint=hint)
    check_flags(rig, goal, Pins(context=setup.context))
    against = _against(setup, found, goal)
    if against is not None and not own_cards:
        rejected = Rejected(
            setup.layout, setup.engine, (setup.quant.id,), against.rule, against.sentence, against.remedy
        )
        return PlanChoice(rig, order, (), (rejected,)), []
    choice = choice_of_setup(setup, found.rig, goal, basis, preset.checkpoint)
    said = [] if against is None else [f"its author ran it, though by what skep knows {against.sentence}"]
    return choice, said


def _against(setup: Setup, found: ResolvedRig, goal: PlanGoal) -> Finding | None:
    """Return the rule that refuses the setup, or that it does not fit its cards."""
    if (refused := refusal(setup, found.rig)) is not None:
        return refused
    context = setup.context or goal.need_tokens
    fit = fits(setup, sizing_card(found.rig, setup.layout), context=context, slots=setup.slots)
    return None if fit.fits else Finding("memory", "refused", fit.sentence, "the planner's arithmetic")


def _figures(preset: Preset, choices: list[PlanChoice]) -> Iterator[FigureBeside]:
    """Yield each published figure with what the plan of its own cards expects at its load."""
    for plan in (plan for choice in choices for plan in choice.plans):
        for figure in preset.published:
            prompt, answer = figure.input_tokens, figure.output_tokens
            usual = lengths_of(preset) or (CODING_INPUT_TOKENS, CODING_OUTPUT_TOKENS)
            load = PlannedLoad(figure.concurrency, prompt or usual[0], answer or usual[1])
            yield FigureBeside(
                concurrency=figure.concurrency,
                input_tokens=int(load.input_tokens),
                output_tokens=int(load.output_tokens),
                lengths_published=prompt is not None and answer is not None,
                metric=figure.metric,
                published_tok_s=figure.tok_s,
                predicted_tok_s=_predicted(plan, figure, load),
            )


def _predicted(plan: Plan, figure: Published, load: PlannedLoad) -> float:
    model = plan.rated.prospect
    if figure.metric == "decode":
        return model.figure(load, "decode")
    output = model.figure(load, "effective")
    whole = (load.input_tokens + load.output_tokens) / load.output_tokens
    return output * whole if figure.metric == "combined" else output


def _cautions(preset: Preset, found: list[str]) -> Iterator[str]:
    if preset.broken is not None:
        yield f"its author could not start it: {preset.broken}"
    yield from found
    stand_in = stand_in_words(preset)
    if stand_in is not None:
        yield stand_in
    if preset.needs:
        names = ", ".join(need.id for need in preset.needs)
        yield f"its figures rest on {names}: `skep presets show {preset.name}` explains them"


def _pins(setup: Setup) -> Pins:
    layout = setup.layout
    return Pins(
        quant=setup.quant,
        kv=setup.kv,
        spec=setup.spec,
        no_spec=setup.spec is None,
        graphs=setup.graphs,
        vision=setup.vision,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        replicas=layout.replicas,
        slots=setup.slots,
        context=setup.context,
        utilization=setup.utilization,
    )
