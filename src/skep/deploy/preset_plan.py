"""A preset as a plan: what the planner expects of it on its own cards, or on others.

Nothing is searched for: the preset says everything. Its author ran it, so on its own cards and
unchanged, a rule or the memory that speaks against it is a caution; on other cards or with other
options it is a reason to refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import NO_CARDS, Preset, Published, best_figure, stand_in_words
from skep.config.presets import serve_of
from skep.config.rigs import ResolvedRig
from skep.deploy.plan_request import (
    AGENTS,
    FigureBeside,
    PlanAnswer,
    PlanFlags,
    PresetAnswer,
    ResolvedModel,
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
from skep.planner.predict import SpeedModel
from skep.planner.published import PublishedRow
from skep.planner.ranking import Basis, correction_of, speed_model_of, uncorrected_model
from skep.planner.rules import Finding, refusal
from skep.planner.setup import Layout, PlannedLoad, Rig, Setup, find_kv

CODING_TASK = (256, 1024)  # tokens in and out, where the author gives no lengths


def agents_of(preset: Preset) -> int:
    """Return how many agents its best figure was measured with."""
    best = best_figure(preset)
    if best is not None:
        return best.concurrency
    return AGENTS


def load_lengths(preset: Preset, figure: Published) -> tuple[int, int]:
    """Return the tokens of prompt and answer that a figure was measured with, or is assumed to
    be.
    """
    prompt, answer = _usual_lengths(preset, serve_of(preset).context_tokens)
    return figure.input_tokens or prompt, figure.output_tokens or answer


def _usual_lengths(preset: Preset, context: int) -> tuple[int, int]:
    """Return the lengths of most of its figures, else those of a coding task, as far as the
    context goes.
    """
    lengths = [
        (figure.input_tokens, figure.output_tokens)
        for figure in preset.published
        if figure.input_tokens is not None and figure.output_tokens is not None
    ]
    prompt, answer = Counter(lengths).most_common(1)[0][0] if lengths else CODING_TASK
    answer = min(answer, max(1, context // 2))
    return min(prompt, max(1, context - answer)), answer


def planned_figures(preset: Preset, store: Path) -> dict[Published, FigureBeside]:
    """Return what `skep plan PRESET` has beside each of its figures; none where the planner does
    not know it.
    """
    try:
        answer = answer_preset(preset, PlanFlags(preset.name, agents=agents_of(preset)), store)
    except UserError:
        return {}
    assert answer.preset is not None
    return dict(zip(preset.published, answer.preset.figures, strict=True))


def answer_preset(preset: Preset, flags: PlanFlags, store: Path) -> PlanAnswer:
    """Return what `skep plan PRESET` answers.

    `flags`: as typed, with the preset's name where a model stands.
    """
    _refuse_pins(preset, flags)
    request = _request(preset, flags)
    model, setup = _setup(request.preset)
    flags = _with_cards(flags, preset)
    goal = goal_of(_with_lengths(flags, request.preset, setup), ResolvedModel(model))
    rigs = read_rigs(flags)
    notes = [note for rig in rigs for note in rig.notes]
    choices: list[PlanChoice] = []
    cautions: list[str] = []
    figures: list[FigureBeside] = []
    for rig in rigs:
        basis = own_basis(store, model.id, setup.quant.id, rig.rig)(setup.engine)
        notes.append(basis.note)
        choice, caution = _choice(request, setup, rig, goal, basis)
        choices.append(choice)
        cautions += caution
        if request.is_published:
            figures += (
                _beside(preset, figure, plan, basis)
                for plan in choice.plans
                for figure in preset.published
            )
    beside = PresetAnswer(request.preset, tuple(figures), tuple(_cautions(request, cautions)))
    distinct_notes = tuple(dict.fromkeys(filter(None, notes)))
    resolved_model = ResolvedModel(model, checkpoint=preset.checkpoint)
    return PlanAnswer(
        flags,
        resolved_model,
        goal,
        _pins(setup),
        (setup.engine,),
        tuple(choices),
        distinct_notes,
        preset=beside,
    )


class _PresetRequest(Struct, frozen=True):
    """A preset with what was typed of it, for its own cards or others."""

    published: Preset  # as its author has it
    preset: Preset
    own_cards: bool
    changed: bool

    @property
    def is_published(self) -> bool:
        """Return whether the preset is planned as its author measured it."""
        return self.own_cards and not self.changed


def _request(published: Preset, flags: PlanFlags) -> _PresetRequest:
    preset = _with_flags(published, flags)
    own_cards = not flags.gpu and flags.link in (None, published.link)
    return _PresetRequest(
        published,
        preset,
        own_cards,
        changed=preset != _with_flags(published, PlanFlags(flags.model)),
    )


def _with_cards(flags: PlanFlags, preset: Preset) -> PlanFlags:
    """Return the flags with the preset's cards, where none are typed."""
    if flags.gpu:
        return flags
    if preset.hardware == NO_CARDS:
        hint = f'name cards to plan it for: skep plan {preset.name} --gpu "2x rtx-3090"'
        raise UserError(
            f"the preset `{preset.name}` runs on a CPU, which skep does not plan", hint=hint
        )
    return replace(flags, gpu=(preset.hardware,), link=flags.link or preset.link)


def _refuse_pins(preset: Preset, flags: PlanFlags) -> None:
    flag = next(
        (name for name in ("engine", "quant", "spec", "tp", "pp", "ep") if getattr(flags, name)),
        None,
    )
    if flag is not None:
        hint = f"`skep presets new NAME --from {preset.name}` makes a copy that you can change"
        raise UserError(f"--{flag} cannot be combined with the preset `{preset.name}`", hint=hint)


def _with_flags(preset: Preset, flags: PlanFlags) -> Preset:
    options = replace(
        preset.options,
        kv=find_kv(flags.kv).id if flags.kv else preset.options.kv,
        memory_share=flags.utilization or preset.options.memory_share,
        graphs=preset.options.graphs if flags.graphs is None else flags.graphs,
        text_only=preset.options.text_only and not flags.vision,
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
        unknown = "model" if model is None else "weight format"
        hint = (
            "`skep catalog models` lists the models that it knows; `skep plan CONFIG.JSON` "
            "reads another one"
        )
        raise UserError(
            f"skep does not know the {unknown} of the preset `{preset.name}`, so cannot plan it",
            hint=hint,
        )
    setup = setup_of_preset(preset, model, quant)
    return model, replace(setup, quant=as_published(quant, model, setup.engine))


def _with_lengths(flags: PlanFlags, preset: Preset, setup: Setup) -> PlanFlags:
    """Return the flags with the usual lengths of the preset's figures, where none are typed."""
    context = setup.context or serve_of(preset).context_tokens
    prompt, answer = _usual_lengths(preset, context)
    answer = flags.output_tokens or answer
    prompt = flags.input_tokens or min(prompt, max(1, context - answer))
    return replace(flags, input_tokens=prompt, output_tokens=answer, context=setup.context)


def _choice(
    request: _PresetRequest, setup: Setup, resolved: ResolvedRig, goal: PlanGoal, basis: Basis
) -> tuple[PlanChoice, list[str]]:
    """Return the plan on one rig, with what speaks against it though its author ran it."""
    preset = request.preset
    rig, order = arranged(resolved.rig)
    setup = _spread(setup, rig, preset)
    cards = setup.layout.cards
    present = len(rig.cards)
    if cards > present:
        needs = f"the preset `{preset.name}` needs {cards} cards ({setup.layout})"
        hint = (
            f"it was measured on {preset.hardware}; `skep plan {preset.model} --gpu RIG` finds "
            f"what {present} can do"
        )
        raise DoesNotFit(f"{needs}, `{resolved.rig.title}` has {present}", hint=hint)
    check_flags(rig, goal, Pins(context=setup.context))
    against = _against(setup, resolved, goal)
    if against is None:
        return choice_of_setup(setup, resolved.rig, goal, basis, preset.checkpoint), []
    if not _is_excused(against, request, resolved, goal):
        rejected = Rejected(
            setup.layout,
            setup.engine,
            (setup.quant.id,),
            against.rule,
            against.sentence,
            against.remedy,
        )
        return PlanChoice(rig, order, (), (rejected,)), []
    choice = choice_of_setup(setup, resolved.rig, goal, basis, preset.checkpoint)
    return choice, [_despite(request, against)]


def _spread(setup: Setup, rig: Rig, preset: Preset) -> Setup:
    """Return the setup over all cards where its engine divides itself over those it sees."""
    sees_several = setup.layout.cards == 1 and len(rig.cards) > 1 and not preset.gpus
    if kind_of(setup.engine).divides_itself and sees_several:
        return replace(setup, layout=Layout(pp=len(rig.cards)))
    return setup


def _is_excused(
    against: Finding, request: _PresetRequest, resolved: ResolvedRig, goal: PlanGoal
) -> bool:
    """Return whether the preset's author met the same on these cards: then it is a caution and no
    reason to refuse.
    """
    if not request.own_cards:
        return False
    if not request.changed:
        return True
    _, published = _setup(_with_flags(request.published, PlanFlags(request.published.name)))
    rig, _ = arranged(resolved.rig)
    met = _against(_spread(published, rig, request.published), resolved, goal)
    return met is not None and met.rule == against.rule


def _despite(request: _PresetRequest, against: Finding) -> str:
    """Return what speaks against the preset, with the words that its author ran it, if so."""
    if request.published.broken is not None:
        return f"by what skep knows {against.sentence}"
    changed = ", without what you changed," if request.changed else ","
    return f"its author ran it{changed} though by what skep knows {against.sentence}"


def _against(setup: Setup, resolved: ResolvedRig, goal: PlanGoal) -> Finding | None:
    """Return the rule that refuses the setup, or that it does not fit its cards."""
    if (refused := refusal(setup, resolved.rig)) is not None:
        return refused
    context = setup.context or goal.need_tokens
    fit = fits(setup, sizing_card(resolved.rig, setup.layout), context=context, slots=setup.slots)
    if fit.fits:
        return None
    return Finding("memory", "refused", fit.sentence, "the planner's arithmetic")


def _beside(preset: Preset, figure: Published, plan: Plan, basis: Basis) -> FigureBeside:
    """Return a published figure with what the plan of its own cards expects at its load."""
    rated = plan.rated
    prompt, answer = load_lengths(preset, figure)
    goal = replace(
        rated.goal, agents=figure.concurrency, input_tokens=prompt, output_tokens=answer
    )
    load = goal.load()
    predicted = speed_model_of(rated.setup, rated.rig, goal, basis)
    corrected = correction_of(rated.setup, rated.rig, basis, figure.concurrency)
    uncorrected_tok_s = None
    if corrected is not None:
        uncorrected = uncorrected_model(rated.setup, rated.rig, goal, basis)
        uncorrected_tok_s = _predicted(uncorrected, figure, load)
    rows = corrected.rows if corrected is not None else ()
    return FigureBeside(
        concurrency=figure.concurrency,
        input_tokens=prompt,
        output_tokens=answer,
        lengths_published=figure.input_tokens is not None and figure.output_tokens is not None,
        metric=figure.metric,
        published_tok_s=figure.tok_s,
        predicted_tok_s=_predicted(predicted, figure, load),
        uncorrected_tok_s=uncorrected_tok_s,
        corrected_by_it=any(_is_row_of(figure, row) for row in rows),
    )


def _is_row_of(figure: Published, row: PublishedRow) -> bool:
    return (row.tok_s, row.concurrency) == (figure.tok_s, figure.concurrency)


def _predicted(model: SpeedModel, figure: Published, load: PlannedLoad) -> float:
    if figure.metric == "decode":
        return model.figure(load, "decode")
    output = model.figure(load, "effective")
    whole = (load.input_tokens + load.output_tokens) / load.output_tokens
    if figure.metric == "combined":
        return output * whole
    return output


def _cautions(request: _PresetRequest, objections: list[str]) -> Iterator[str]:
    preset = request.preset
    if preset.broken is not None:
        where = ""
        if not request.is_published:
            where = f" as it was published, on {preset.hardware}"
        yield f"its author could not start it{where}: {preset.broken}"
    yield from objections
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
