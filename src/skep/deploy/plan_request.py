"""What `skep plan` does between flags and output: read the model, read the rigs, choose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from skep.catalog.engines import gguf_engine, planned_engines, pooled_engines
from skep.catalog.presets import Metric, Preset, parse_draft
from skep.catalog.session_shapes import (
    SessionShape,
    check_window,
    find_shape,
    session_shapes,
)
from skep.config.rigs import ResolvedRig, find_rig, rig_of_host
from skep.deploy.chat_template import folder_takes_tools, header_takes_tools
from skep.errors import SkepError, UserError, WeightsError
from skep.planner.candidates import (
    AGENT_INPUT_TOKENS,
    AGENT_OUTPUT_TOKENS,
    PinnedSizes,
    Pins,
    PlanGoal,
)
from skep.planner.choose import Plan, PlanChoice, choose
from skep.planner.order import first_of
from skep.planner.published import PublishedRow, cards_title, published_rows, way_of
from skep.planner.ranking import Basis, BasisOf, band
from skep.planner.rules import runs_cuda_kernels
from skep.planner.session_outlook import with_sessions
from skep.planner.setup import (
    QUANTS,
    Quant,
    Rig,
    Setup,
    Speculation,
    find_kv,
    find_quant,
    known_quant,
)
from skep.planner.step import published_constants
from skep.planner.would_fit import fits_nowhere

if TYPE_CHECKING:
    from skep.catalog.models import Geometry

GOALS = ("throughput", "latency")
AGENTS = 4  # to plan for, where nobody says how many
TASK = "task"  # the load of single requests, none of them cached
# Of the context that sessions should have: tried in turn where it does not fit.
_WINDOW_SHARES = (0.75, 0.5)
_QUANT_ENDINGS = (
    "awq", "gptq", "fp8", "nvfp4", "mxfp4", "autoround", "int4", "w4a16", "w8a8", "bf16",
)  # fmt: skip
_METHODS = {
    "modelopt": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt_fp4": "nvfp4",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
}
_NO_LIMIT = 1 << 40
EVIDENCE_START = "published for "  # begins a note about what others measured on such cards


class PlanFlags(PinnedSizes, frozen=True):
    """The flags as they were typed."""

    model: str
    gpu: tuple[str, ...] = ()
    link: str | None = None
    agents: int = AGENTS
    goal: str = "throughput"
    slo: str | None = None
    input_tokens: int | None = None  # None: as an agent's
    output_tokens: int | None = None
    engine: tuple[str, ...] = ()
    quant: str | None = None
    kv: str | None = None
    spec: str | None = None
    graphs: bool | None = None  # False: eager
    vision: bool = False
    load: str | None = None  # a shape of sessions, or `task`; None: as `load_of` says


class ResolvedModel(Struct, frozen=True):
    """A model with what its name or its files say of its weights."""

    geometry: Geometry
    quant: Quant | None = None  # of its files, or by its name
    checkpoint: str | None = None  # where they lie
    notes: tuple[str, ...] = ()
    engine: str | None = None  # the only one that reads them; None: several do
    takes_tools: bool | None = None  # as their chat template says; None: it was not read
    # what their configuration calls a format that is not known here
    unknown_quant: str | None = None


class FigureBeside(Struct, frozen=True):
    """One published figure of a preset, and what its plan expects at the same load."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    lengths_published: bool  # False: its author gives none, these are assumed
    metric: Metric
    published_tok_s: float
    predicted_tok_s: float  # as the plan's own levels
    # as it would be without published rows of its layout; None: no row corrects it
    uncorrected_tok_s: float | None = None
    corrected_by_it: bool = False  # this figure is one of those rows

    @property
    def off(self) -> float:
        """Return how far the prediction is above the published figure, as a share."""
        return self.predicted_tok_s / self.published_tok_s - 1


class PresetAnswer(Struct, frozen=True):
    """The preset that was planned.

    `figures`: empty on cards or with options that it was not measured with.
    """

    preset: Preset
    figures: tuple[FigureBeside, ...] = ()
    cautions: tuple[str, ...] = ()


class PlanAnswer(Struct, frozen=True):
    flags: PlanFlags
    model: ResolvedModel
    goal: PlanGoal
    pins: Pins
    engines: tuple[str, ...]
    choices: tuple[PlanChoice, ...]  # one a rig, in the order of --gpu
    notes: tuple[str, ...]
    published: Mapping[str, str] = {}  # by the title of a rig: what others measured on such cards
    preset: PresetAnswer | None = None  # where a preset was planned instead of a model
    kv_shown_by: str = ""  # the run that shows a KV type below 8 bits to be no worse with tools

    @property
    def recommended(self) -> PlanChoice:
        """Return the rig to start on: the cheapest of those that meet the requirement, without
        prices the fastest.
        """
        return min((choice for choice in self.choices if choice.plans), key=self.place)

    @staticmethod
    def place(choice: PlanChoice) -> tuple[bool, bool, float, float]:
        """Return the sort key of a rig: by its plans, the requirement, the price, the speed."""
        if not choice.plans:
            return True, True, 0.0, 0.0
        rated = choice.plans[0].rated
        return (
            False,
            not rated.keeps_promise,
            choice.rig.price or math.inf,
            -rated.outcome.effective_tok_s,
        )

    @property
    def ranked(self) -> list[tuple[PlanChoice, Plan]]:
        """Return all plans of all rigs: the recommended rig's first plan, then the best first.

        Plans of one rig stay in their order.
        """
        remaining = [(choice, list(choice.plans)) for choice in self.choices if choice.plans]
        ordered: list[tuple[PlanChoice, Plan]] = []
        while remaining:
            firsts = [plans[0].rated for _, plans in remaining]
            if ordered:
                place = _index_of(first_of(firsts), firsts)
            else:
                place = _index_of(self.recommended, [choice for choice, _ in remaining])
            choice, plans = remaining[place]
            ordered.append((choice, plans.pop(0)))
            if not plans:
                del remaining[place]
        return ordered


def _index_of(target: object, objects: Sequence[object]) -> int:
    """Return the index of this very object: an equal one does not count."""
    return next(number for number, entry in enumerate(objects) if entry is target)


def answer_plan(
    flags: PlanFlags, store: Path, *, files: bool = True, rig: ResolvedRig | None = None
) -> PlanAnswer:
    """Return the plans for a model on each rig.

    `files`: the model may be a file or a folder of this machine. `rig`: instead of those that the
    flags name.
    """
    model = read_model(flags.model) if files else model_by_name(flags.model)
    goal = goal_of(flags, model)
    pins = pins_of(flags, model)
    rigs = read_rigs(flags) if rig is None else (rig,)
    rig_is_named = bool(flags.gpu) or rig is not None
    quant = pins.quant.id if pins.quant else None
    checkpoint = checkpoint_asked(flags, model)
    notes = [*model.notes, *(note for rig in rigs for note in rig.notes)]
    choices: list[PlanChoice] = []
    engines: list[str] = []
    for resolved in rigs:
        check_flags(resolved.rig, goal, pins, model.geometry)
        names = engines_of(flags, model, resolved)
        basis_of = own_basis(
            store, model.geometry.id, quant, resolved.rig if rig_is_named else None
        )
        choice = partial(
            choose,
            model.geometry,
            resolved.rig,
            pins=pins,
            engines=names,
            basis_of=basis_of,
            checkpoint=checkpoint,
        )
        choices.append(with_window(choice, goal))
        engines += names
        notes += [basis_of(name).note for name in names]
    published = evidence(choices, goal.agents)
    notes += published.values()
    distinct_notes = tuple(dict.fromkeys(filter(None, notes)))
    names_used = tuple(dict.fromkeys(engines))
    return PlanAnswer(
        flags, model, goal, pins, names_used, tuple(choices), distinct_notes, published
    )


def with_window(choice: Callable[[PlanGoal], PlanChoice], goal: PlanGoal) -> PlanChoice:
    """Return the choice for sessions with the context that they should have. Where no layout gives
    it to the sessions of all agents, return a choice for less of it that they can work with.
    """
    full = choice(goal)
    if goal.shape is None or _gives_windows(full, goal):
        return full
    fallback = full
    for share in _WINDOW_SHARES:
        window = max(goal.least_window_tokens, int(share * goal.window_tokens))
        if window < goal.window_tokens:
            narrow = with_sessions(goal, find_shape(goal.shape), window)
            smaller = choice(narrow)
            if _gives_windows(smaller, narrow):
                return smaller
            fallback = smaller if smaller.plans else fallback
    return fallback


def _gives_windows(choice: PlanChoice, goal: PlanGoal) -> bool:
    if not choice.plans:
        return False
    best = choice.plans[0].rated
    return best.holds_all and best.window_tokens >= goal.window_tokens


def checkpoint_asked(flags: PlanFlags, model: ResolvedModel) -> str | None:
    """Return the model's own files; None where another format than theirs is asked for."""
    if flags.quant is None or model.quant is None:
        return model.checkpoint
    is_same_format = model.quant.family == find_quant(flags.quant).family
    return model.checkpoint if is_same_format else None


def nothing_fits(answer: PlanAnswer) -> SkepError | None:
    """Return why no rig has a plan; None: a rig has. Exit code 3 wins over 2."""
    if any(choice.plans for choice in answer.choices):
        return None
    tried = [
        (choice, choice.rejected[0].engine if choice.rejected else answer.engines[0])
        for choice in answer.choices
    ]
    errors = (
        fits_nowhere(answer.model.geometry, choice, answer.goal, answer.pins, engine)
        for choice, engine in tried
    )
    return max(errors, key=lambda error: error.exit_code)


def load_of(flags: PlanFlags, model: ResolvedModel) -> str:
    """Return the load to plan for. Without --load, lengths mean tasks; without lengths, too, it is
    the first kind of sessions that has room in the model's context, else tasks.
    """
    lengths = flags.input_tokens or flags.output_tokens
    if flags.load is None:
        context = min(flags.context or _NO_LIMIT, model.geometry.max_context or _NO_LIMIT)
        fitting = (
            name
            for name, shape in session_shapes().items()
            if shape.least_window_tokens <= context and not lengths
        )
        return next(fitting, TASK)
    _one_of("--load", flags.load, (*session_shapes(), TASK))
    if flags.load != TASK and lengths:
        raise UserError(
            f"--prompt-tokens and --output-tokens are of a task, --load {flags.load} has its own",
            hint="leave them out, or plan with `--load task`",
        )
    return flags.load


def goal_of(flags: PlanFlags, model: ResolvedModel) -> PlanGoal:
    """Return what the plan is for: sessions with the context that they should have, or tasks."""
    load = load_of(flags, model)
    if load == TASK:
        return _goal_of_tasks(flags, model)
    return _goal_of_sessions(flags, model, find_shape(load))


def _goal_of_sessions(flags: PlanFlags, model: ResolvedModel, shape: SessionShape) -> PlanGoal:
    limit = model.geometry.max_context or _NO_LIMIT
    window = min(flags.context or shape.wanted_window_tokens, limit)
    check_window(shape, window, "--load")
    goal = PlanGoal(kind=_kind_of(flags), agents=flags.agents, limits=_limits_of(flags))
    return with_sessions(goal, shape, window)


def _kind_of(flags: PlanFlags) -> str:
    _one_of("--goal", flags.goal, GOALS)
    return flags.goal


def _limits_of(flags: PlanFlags) -> tuple[tuple[str, float], ...]:
    if flags.slo is None:
        return ()
    from skep.stats.slo import SloLimits

    return tuple((limit.name, limit.ms) for limit in SloLimits.parse(flags.slo).limits)


def _goal_of_tasks(flags: PlanFlags, model: ResolvedModel) -> PlanGoal:
    """Return the goal of tasks. Without lengths they are as long as an agent's, as far as the
    context is enough.
    """
    model_limit = model.geometry.max_context or _NO_LIMIT
    max_tokens = min(flags.context or _NO_LIMIT, model_limit)
    usual_output = min(AGENT_OUTPUT_TOKENS, max(1, max_tokens // 8))
    output = flags.output_tokens or usual_output
    usual_input = min(AGENT_INPUT_TOKENS, max(1, max_tokens - output))
    return PlanGoal(
        kind=_kind_of(flags),
        agents=flags.agents,
        input_tokens=flags.input_tokens or usual_input,
        output_tokens=output,
        limits=_limits_of(flags),
    )


def check_flags(rig: Rig, goal: PlanGoal, pins: Pins, model: Geometry | None = None) -> None:
    """Raise UserError for flags that contradict each other, the rig or the model."""
    if model is not None and model.max_context is not None:
        max_context = model.max_context
        made_for = f"that {model.id} was made for"
        if (pins.context or 0) > max_context:
            hint = f"use --context {max_context} at most, or a config.json with rope scaling"
            raise UserError(
                f"--context {pins.context} is beyond the {max_context} tokens {made_for}",
                hint=hint,
            )
        if goal.need_tokens > max_context:
            hint = (
                "lower --prompt-tokens or --output-tokens, or name a config.json with rope scaling"
            )
            raise UserError(
                f"a task of {goal.need_tokens} tokens is beyond the {max_context} {made_for}",
                hint=hint,
            )
    needed = (pins.tp or 1) * (pins.pp or 1) * (pins.replicas or 1)
    if needed > len(rig.cards):
        card_count = f"{len(rig.cards)} card{'s' if len(rig.cards) > 1 else ''}"
        hint = "the cards are TP x PP x replicas; leave one out and skep chooses it"
        raise UserError(
            f"{pins.layout_words} needs {needed} cards, `{rig.title}` has {card_count}", hint=hint
        )
    if pins.context is not None and pins.context < goal.need_tokens:
        hint = "raise --context, or lower --prompt-tokens and --output-tokens"
        raise UserError(
            f"--context {pins.context} is less than a task's {goal.need_tokens} tokens", hint=hint
        )


def pins_of(flags: PlanFlags, model: ResolvedModel) -> Pins:
    if flags.utilization is not None and not 0 < flags.utilization <= 1:
        raise UserError(
            f"--memory-share {flags.utilization:g} is not a share of a card",
            hint="write it as 0.9",
        )
    quant = find_quant(flags.quant) if flags.quant else model.quant
    file_quant = model.quant
    if (
        quant is not None
        and file_quant is not None
        and file_quant.family not in ("half", quant.family)
    ):
        raise UserError(
            f"--quant {quant.id} contradicts `{flags.model}`, which is {file_quant.title}",
            hint="leave --quant out, or name the checkpoint in that format",
        )
    if quant is None and model.unknown_quant is not None:
        raise UserError(
            f"`{flags.model}` is quantized with `{model.unknown_quant}`, which skep does not know",
            hint="name the nearest format with --quant: " + ", ".join(QUANTS),
        )
    spec, no_spec = _speculation(flags.spec)
    sizes = {name: getattr(flags, name) for name in PinnedSizes.__struct_fields__}
    kv = find_kv(flags.kv) if flags.kv else None
    graphs = flags.graphs is not False
    return Pins(
        quant=quant, kv=kv, spec=spec, no_spec=no_spec, graphs=graphs, vision=flags.vision, **sizes
    )


def engines_of(flags: PlanFlags, model: ResolvedModel, rig: ResolvedRig) -> tuple[str, ...]:
    """Return the engines to plan with: llama.cpp for GGUF, Apple's chips and NVIDIA's oldest, the
    others for folders, else all.
    """
    words = (
        name.strip().lower().replace("llama.cpp", gguf_engine())
        for names in flags.engine
        for name in names.split(",")
    )
    named = tuple(dict.fromkeys(words))
    if "all" in named:
        return planned_engines()
    for name in named:
        _one_of("--engine", name, planned_engines())
    if named:
        return named
    pinned = find_quant(flags.quant) if flags.quant else model.quant
    gguf = pinned is not None and pinned.family == "gguf"
    has_kernels = any(runs_cuda_kernels(card) for card in rig.rig.cards)
    if gguf or model.engine == gguf_engine() or not has_kernels:
        return (gguf_engine(),)
    if pinned is None and model.checkpoint is None:
        return planned_engines()
    return pooled_engines()


def read_rigs(flags: PlanFlags) -> tuple[ResolvedRig, ...]:
    names = tuple(dict.fromkeys(flags.gpu))
    if not names:
        from skep.host.facts import read_host

        return (rig_of_host(read_host(), flags.link),)
    rigs = [find_rig(name, flags.link) for name in names]
    titles = [rig.rig.title for rig in rigs]
    return tuple(  # rigs of the same cards are called as they were written
        replace(rig, rig=replace(rig.rig, title=name)) if titles.count(rig.rig.title) > 1 else rig
        for rig, name in zip(rigs, names, strict=True)
    )


def read_model(name: str) -> ResolvedModel:
    """Return a model by its path or name. `qwen3-8b` is a name even beside a folder so called."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return _read_gguf(path, name)
    # `models/mine` with a configuration in it: with a slash, so it is no name of the catalogue
    is_folder = len(path.parts) > 1 and (path / "config.json").is_file()
    if path.suffix == ".json" or name.startswith((".", "/", "~")) or is_folder:
        return _read_folder(path)
    from skep.catalog.models import find_geometry

    if path.is_dir() and find_geometry(name) is None:
        return _read_folder(path)
    return model_by_name(name)


def model_by_name(name: str) -> ResolvedModel:
    """Return a model of the catalogue.

    It reads no file, so that it does not tell which files exist.
    """
    from skep.catalog.models import geometry

    model = geometry(name)
    words = re.split(r"[\s_-]+", name.lower())
    if words[-1] == "gguf":
        return ResolvedModel(
            model,
            notes=(f"{name} is taken as GGUF for llama.cpp, by its name",),
            engine=gguf_engine(),
        )
    word = next((word for word in words if word in _QUANT_ENDINGS), None)
    if word is None or model.id == name.lower():
        return ResolvedModel(model)
    quant = find_quant(word)
    return ResolvedModel(
        model,
        quant,
        name if "/" in name else None,
        (f"{name} is taken as {quant.title}, by its name",),
    )


def _read_gguf(path: Path, name: str) -> ResolvedModel:
    from skep.weights.gguf import geometry_of, read_header

    try:
        header = read_header(path)
    except WeightsError as error:
        raise UserError(error.message, hint=error.hint) from None
    geometry = geometry_of(header)
    takes_tools = header_takes_tools(header.metadata)
    if any(tensor.type_name == "MXFP4" for tensor in header.tensors):
        notes = (f"{path.name} holds MXFP4",)
        return ResolvedModel(geometry, QUANTS["gguf_mxfp4"], name, notes, takes_tools=takes_tools)
    # `Model-Q4_K_M`
    word = re.search(r"(?:^|[.\-_])(I?Q\d(?:_\w{1,16})?|BF16|F16)$", path.stem, re.IGNORECASE)
    quant = known_quant(word[1]) if word else None
    by = "name"
    if quant is None or quant.family != "gguf":
        gguf_formats = (q for q in QUANTS.values() if q.family == "gguf" and q.id != "gguf_mxfp4")
        bits = path.stat().st_size * 8 / geometry.params_total
        quant = min(gguf_formats, key=lambda q: abs(q.bits - bits))
        by = "size"
    notes = (f"{path.name} is taken as {quant.title}, by its {by}",)
    return ResolvedModel(geometry, quant, name, notes, takes_tools=takes_tools)


def _read_folder(path: Path) -> ResolvedModel:
    from skep.weights.config_json import read_config, read_quantization

    geometry = read_config(path)
    quantization = read_quantization(path)
    folder = path.parent if path.suffix == ".json" else path
    model = ResolvedModel(geometry, checkpoint=str(folder), takes_tools=folder_takes_tools(folder))
    if quantization is None:
        return replace(model, quant=QUANTS["bf16"])
    quant = _named_quant(quantization.method, quantization.bits, floats=quantization.floats)
    if quant is None:
        return replace(model, unknown_quant=quantization.method)
    return replace(model, quant=quant, notes=(f"the configuration says {quant.title}",))


def _named_quant(method: str, bits: float | None, *, floats: bool | None = None) -> Quant | None:
    """Return the format of a `quantization_config`; None where it is not known."""
    if method in ("compressed-tensors", "modelopt", "quark") and (floats or bits == 4.5):
        if bits == 8:
            return QUANTS["fp8"]
        if bits in (4, 4.5):
            return QUANTS["nvfp4"]
        return None
    method = _METHODS.get(method, method)
    spellings = (method, method.replace("-", "_"), method.replace("_", "-"))
    quant = next(filter(None, map(known_quant, spellings)), None)
    if quant is not None and bits == 8 and quant.nominal == 4:
        return QUANTS["int8"]
    return quant


def _speculation(text: str | None) -> tuple[Speculation | None, bool]:
    """Parse `mtp:3` or `none`; the second value is whether speculation is ruled out."""
    if text is None or text.strip().lower() == "none":
        return None, text is not None
    draft = parse_draft(text, None, key="--spec")
    return Speculation(draft.method, draft.depth), False


def _one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{flag} `{value}` is not known", hint="known: " + ", ".join(choices))


def own_basis(store: Path, model_id: str, quant_id: str | None, rig: Rig | None = None) -> BasisOf:
    """Return what plans are computed with: the nearest calibration on this machine, or on such
    cards where a rig is given, else published constants. Its note goes with every plan."""
    if not store.exists():
        return lambda _engine: Basis(published_constants())
    from skep.deploy.stored_calibration import calibrated_basis
    from skep.host.facts import read_host

    return calibrated_basis(store, rig or read_host(), model_id, quant_id)


# What others measured with the same model on the same cards, beside what a plan expects there


def evidence(choices: Sequence[PlanChoice], agents: int) -> dict[str, str]:
    """Return for each rig's title a sentence on the fastest of what others measured at about as
    many agents.

    Rows in the plan's format that state their lengths are compared with it; others are shown where
    none is as near."""
    sentences = {}
    for choice in choices:
        if not choice.plans:
            continue
        plan = choice.plans[0]
        rows = measurements(plan)
        in_format = [row for row in rows if row.is_in_format(plan.setup.quant)]
        compared = _fastest_near([row for row in in_format if row.has_lengths], agents)
        others = [row for row in in_format or rows if not row.has_lengths or not in_format]
        uncompared = _fastest_near(others, agents)
        if (
            uncompared
            and compared
            and _distance(uncompared[0], agents) >= _distance(compared[0], agents)
        ):
            uncompared = []
        row_sentences = [f"{_row_words(plan, row)}{_compared(plan, row)}" for row in compared]
        row_sentences += [
            f"{_row_words(plan, row)}{_not_compared(plan, row)}" for row in uncompared
        ]
        if row_sentences:
            sentences[choice.rig.title] = (
                f"{EVIDENCE_START}{cards_title(choice.rig.cards)}: {'; also '.join(row_sentences)}"
            )
    return sentences


def _fastest_near(rows: Sequence[PublishedRow], agents: int) -> list[PublishedRow]:
    """Return the fastest of the rows at about as many agents, as a list of one or none."""
    if not rows:
        return []
    nearest = min(_distance(row, agents) for row in rows)
    near = (row for row in rows if _distance(row, agents) <= nearest + 0.5)
    return [max(near, key=lambda row: row.tok_s)]


def _distance(row: PublishedRow, agents: int) -> float:
    """Return how many doublings lie between the row's number of agents and this one."""
    return abs(math.log2(row.concurrency / agents))


def measurements(plan: Plan) -> list[PublishedRow]:
    """Return what shipped presets and published tables have of the plan's model on its cards."""
    cards = cards_title(plan.rated.rig.cards)
    return [row for row in published_rows(plan.setup.model.id) if row.cards == cards]


def _row_words(best: Plan, row: PublishedRow) -> str:
    """Return a row with what is different from the plan."""
    how = []
    if row.way != _way_of(best.setup):
        how.append(f"with {row.way}")
    if row.quant is not None and row.quant != best.setup.quant.id:
        how.append(f"in {QUANTS[row.quant].title}")
    # The speed of one stream, whatever its length.
    alone = row.metric == "decode" and row.concurrency == 1
    task = ""
    if row.has_lengths and not alone:
        task = f"{row.input_tokens} tokens in, {row.output_tokens} out, "
    pure = ""
    if row.metric == "decode" and not alone:
        pure = " while they decode"
    speed = " ".join([f"{row.tok_s:,.0f} tok/s{pure}", *how])
    return f"{speed} at {task}C={row.concurrency} ({row.source})"


def _compared(best: Plan, row: PublishedRow) -> str:
    load = row.load
    setup = best.setup
    expected = best.rated.prospect.figure(load, row.metric)
    is_same_setup = row.way == _way_of(setup) and row.quant == setup.quant.id
    remark = ""
    factors = band(setup, best.rated.card, load.concurrency)
    slots = (setup.slots or load.concurrency) * setup.layout.replicas
    if slots < load.concurrency:
        remark = f" with its {slots} slot{'s' if slots > 1 else ''} for longer tasks"
    elif is_same_setup and not expected * factors.low <= row.tok_s <= expected * factors.high:
        remark = "; trust the published figure, not the plan"
    off = (expected / row.tok_s - 1) * 100
    return f"; this plan expects {expected:,.0f} there, {off:+z.0f} %{remark}"


def _way_of(setup: Setup) -> str:
    return way_of(setup.layout, setup.spec, setup.engine)


def _not_compared(best: Plan, row: PublishedRow) -> str:
    reasons = []
    if row.quant is None:
        reasons.append("it names no weight format")
    elif not row.is_in_format(best.setup.quant):
        reasons.append(f"this plan has {best.setup.quant.title}")
    if not row.has_lengths:
        reasons.append("it states no lengths")
    return f"; not compared: {' and '.join(reasons)}"
