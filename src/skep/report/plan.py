"""A plan for people: the text that `skep plan` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from skep.catalog.models import checkpoint_of
from skep.deploy.commands import (
    author_notes,
    caveats,
    commands_of,
    download_bytes,
    gateway_line,
    rests_on,
    start_line,
)
from skep.deploy.plan_request import FigureBeside, PlanAnswer, PresetAnswer
from skep.planner.choose import Plan, PlanChoice, Rejected
from skep.planner.memory import KV_POOL, STATE, WINDOW, Term
from skep.planner.ranking import Predicted
from skep.planner.setup import CardLink, KvType, Layout, Quant, Speculation, find_quant
from skep.report.columns import Column, as_count, plural, print_records, terminal_width
from skep.report.plan_sessions import (
    SESSIONS,
    load_words,
    session_rows,
    speed_line,
    wait_line,
    warm_line,
    window_warning,
)
from skep.units import GIB, format_bytes, format_seconds, number

if TYPE_CHECKING:
    from skep.bench.published import CheckedFigure

_BAR = 30  # characters of a bar
# How much a plan that is read at a glance shows of each.
_WAYS = 3
_LEVELS = 5
_CAVEATS = 2
_WEIGHT_TERMS = ("weights", "draft layers", "vision tower")
_DRAWN_TERMS = (*_WEIGHT_TERMS, KV_POOL, WINDOW, STATE)
_BASIS = {
    "published": "published figures",
    "calibrated": "a calibration",
    "measured": "own sweeps",
    "corrected": "published rows of this layout",
}
_DROPPED = 10  # rejected layouts that are named


def print_plan(answer: PlanAnswer, *, in_full: bool = False, commands: bool = False) -> None:
    """Print the answer on about 25 lines.

    `in_full`: with everything else that is known; `commands`: with what `skep up` runs.
    """
    choice = answer.recommended
    best = choice.plans[0]
    how_to_start = "Start it"
    if len(answer.choices) > 1:
        _print_rigs(answer)
        how_to_start = f"Start it on {choice.rig.title}"
    else:
        _print_rig(answer, choice, in_full=in_full)
    _print_warnings(answer, choice, in_full=in_full)
    if in_full:
        _print_more(answer, best)
    _section(how_to_start)
    up = start_line(answer, best)
    _say_wrapped(f"  {up or 'by hand, on each machine'}", " \\")
    if commands and up is not None:
        _section("The same by hand", _commands(answer, best))
    if not in_full:
        _say_wrapped(
            "--more: reasons, rejected layouts, all memory terms; --commands: the engines' "
            "own command lines"
        )


def _print_rig(answer: PlanAnswer, choice: PlanChoice, *, in_full: bool) -> None:
    """Print the plan of one rig: its layouts, its levels, and the memory of a card."""
    best = choice.plans[0]
    for line in answer_lines(answer, choice, best):
        _say_wrapped(line)
    if answer.preset is None:
        title = "Layouts, best first"
    else:
        title = f"Layout of {answer.preset.preset.name}"
    words = _FIGURE_WORDS if best.outlook is None else _TURN_WORDS
    _section(f"{title} ({words})")
    ranked = answer.ranked
    levels: Sequence[Predicted] = best.predicted
    if not in_full:
        ranked = three_ways(ranked)
        levels = _few(levels, answer.goal.agents)
    _layouts(answer, ranked)
    if choice.first_because is not None:
        _say_wrapped(f"first because: {choice.first_because}")
    goal = answer.goal
    basis = f"rests on {_BASIS[rests_on(best)]}"
    if best.outlook is not None:
        _section(f"Expected by number of sessions ({basis})")
        print_records(SESSIONS, session_rows(best.outlook))
        _say_wrapped(load_words(best.outlook))
    else:
        load = f"{goal.input_tokens:.0f} tokens in, {goal.output_tokens:.0f} out, none cached"
        _section(f"Expected by number of agents ({load}; {basis})")
        print_records(SPEEDS, levels)
    if answer.preset is not None and answer.preset.figures:
        _print_published(answer.preset)
    _say("")
    _say_wrapped(memory_bar(best))


def _print_warnings(answer: PlanAnswer, choice: PlanChoice, *, in_full: bool) -> None:
    best = choice.plans[0]
    warnings = list(caveats(answer, best))
    window = window_warning(best)
    if window is not None:
        warnings.insert(0, window)
    if len(answer.choices) == 1:  # said beside the cards already
        warnings = [line for line in warnings if line != choice.idle]
    if not in_full:
        warnings = list(dict.fromkeys([*warnings[:_CAVEATS], *author_notes(best)]))
    for line in warnings:
        _say_wrapped(f"! {line}")


def _print_published(answer: PresetAnswer) -> None:
    """Print what its author measured beside what is expected at the same load."""
    _section(f"Published beside predicted (not measured here; {answer.preset.source})")
    print_records(PUBLISHED, answer.figures)
    if not all(figure.lengths_published for figure in answer.figures):
        _say("*: its author gives no lengths; these are assumed")
    words = correction_words(answer.figures)
    if words is not None:
        _say_wrapped(words)


def correction_words(
    figures: Sequence[FigureBeside | CheckedFigure],
    names: tuple[str, str, str] = ("PREDICTED", "UNCORRECTED", "OFF"),
) -> str | None:
    """Say how much a prediction owes to the figures that it stands beside; None where nothing
    corrects it.

    `names`: of the columns with the prediction, with the one without those figures, and with the
    difference."""
    predicted, uncorrected, difference = names
    if all(figure.uncorrected_tok_s is None for figure in figures):
        return None
    if any(figure.corrected_by_it for figure in figures):
        source = f"these very figures, so {difference} does not test it"
    else:
        source = "other published rows of this layout"
    return (
        f"{predicted} is corrected by {source}; "
        f"{uncorrected} is what the planner expects without them"
    )


def answer_lines(answer: PlanAnswer, choice: PlanChoice, best: Plan) -> list[str]:
    """Say what it is, how fast, and which files it takes."""
    at = _at(best, answer.goal.agents)
    goal = answer.goal
    agents = plural(goal.agents, "agent")
    together = (
        f"{at.effective_tok_s:,.0f} tok/s together ({at.low:,.0f} to {at.high:,.0f}), reading "
        "prompts included"
    )
    streaming = f"{at.task_tok_s:,.0f} tok/s each while an answer streams"
    if not goal.limits:
        met = ""
    elif best.rated.over_limit <= 1:
        met = ", within --slo"
    else:
        met = ", NOT within --slo"
    first = f"first token after {format_seconds(at.ttft_ms / 1000)}{met}"
    context = _context_words(answer, best)
    lines = [f"{answer.model.geometry.id} on {choice.rig.title} for {agents}: {_what(best)}"]
    if best.outlook is not None:
        lines.append(speed_line(best.outlook, goal.agents))
        lines.append(wait_line(best, best.outlook) + met)
        lines.append(warm_line(best.outlook))
    else:
        lines.append(f"{together}; {streaming}")
        lines.append(f"{first}; {context}")
    if best.checkpoint is not None:
        line = f"{best.checkpoint}, {format_bytes(download_bytes(best))} to download"
        checkpoint = checkpoint_of(best.checkpoint)
        if checkpoint is not None and checkpoint.licence:
            line += f", {checkpoint.licence}"
        lines.append(line)
    if len(choice.rig.cards) > 1:
        lines.append("; ".join(filter(None, [f"cards: {_links(choice)}", choice.idle])))
    return lines


def _context_words(answer: PlanAnswer, best: Plan) -> str:
    """Say what every slot holds at once; of a preset, its own context first."""
    context_each = best.rated.context_each
    context = best.setup.context
    if answer.preset is None or context is None or context == context_each:
        return f"{context_each:,} tokens of context each"
    if context_each:
        full = f"{context_each:,} each with all slots full"
    else:
        full = "by what skep knows not with all slots full"
    return f"{context:,} tokens of context, {full}"


def three_ways(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Return the best of each layout and engine, three at most, the fastest of all among them."""
    ways: dict[object, Ranked] = {}
    for pair in ranked:
        setup = pair[1].setup
        ways.setdefault(
            (setup.layout.tp, setup.layout.pp, setup.layout.replicas, setup.engine), pair
        )
    chosen = list(ways.values())[:_WAYS]
    fastest = max(ranked, key=lambda pair: pair[1].rated.outcome.effective_tok_s)
    if fastest not in chosen and len(ways) > _WAYS:
        chosen[-1] = fastest
    return chosen


def _few(levels: Sequence[Predicted], agents: int) -> list[Predicted]:
    """Return the two ends, the agents asked for, and what lies between, five at most."""
    while len(levels) > _LEVELS:
        ends = (levels[0], levels[-1])
        spare = [level for level in levels if level not in ends and level.concurrency != agents]
        levels = [level for level in levels if level is not spare[len(spare) // 2]]
    return list(levels)


def memory_bar(plan: Plan) -> str:
    """Draw one card with everybody's task in it: weights, KV, the rest, and what is left."""
    memory = plan.rated.full_memory()
    slots = plan.setup.slots
    weights = sum(memory.bytes_of(name) for name in _WEIGHT_TERMS)
    kv = memory.needed_kv_bytes + sum(memory.bytes_of(name) for name in (WINDOW, STATE))
    engine = sum(term.bytes for term in memory.terms if term.name not in _DRAWN_TERMS)
    free = max(0, memory.usable_bytes - (weights + kv + engine))
    parts = (
        ("█", "weights", weights),
        ("▓", f"KV of {plural(slots or 1, _unit(plan))}", kv),
        ("▒", "engine", engine),
        ("░", "free", free),
    )
    bar = ""
    sizes = []
    for sign, name, size in parts:
        bar += sign * round(size / memory.usable_bytes * _BAR)
        sizes.append(f"{name} {size / GIB:.1f}")
    usable = f"{memory.usable_bytes / GIB:.1f} GiB"
    return f"One {memory.card.id}, {usable}: {bar} {', '.join(sizes)}"


def _unit(plan: Plan) -> str:
    return "task" if plan.rated.goal.shape is None else "session"


def _print_rigs(answer: PlanAnswer) -> None:
    """Print one row a rig, then what to buy."""
    goal = answer.goal
    load = f"{goal.input_tokens:.0f} tokens in, {goal.output_tokens:.0f} out"
    words = _FIGURE_WORDS
    if goal.shape is not None:
        load = f"sessions of --load {goal.shape}"
        words = f"{_TURN_WORDS}; WARM: sessions whose KV stays on the cards"
    _say(f"{answer.model.geometry.id} for {plural(goal.agents, 'agent')}, {load}")
    _say(words)
    rows = sorted(answer.choices, key=answer.place)

    def of_best(value: Callable[[Plan], object]) -> Callable[[PlanChoice], object]:
        return lambda choice: value(choice.plans[0]) if choice.plans else None

    columns: list[Column[PlanChoice]] = [
        _text_column("rig", "RIG", _rig_words),
        _text_column(
            "best",
            "BEST",
            lambda choice: _what(choice.plans[0]) if choice.plans else "does not fit",
        ),
        *_rig_figures(answer, of_best),
        Column("price", "PRICE", lambda choice: choice.rig.price, as_count, optional=True),
        Column(
            "per_price",
            _price_title(answer),
            partial(_per_price, goal.agents),
            as_count if goal.shape is None else _one_digit,
            optional=True,
        ),
        _text_column(
            "promise",
            "REQUIREMENT",
            of_best(lambda p: "met" if p.rated.keeps_promise else "not met"),
        ),
    ]
    print_records(columns, rows)
    for choice in answer.choices:
        if not choice.plans:
            reasons = [rejected.reason for rejected in choice.rejected]
            _say(f"{choice.rig.title}: {(reasons or ['nothing was left to try'])[0]}")
    _say(what_to_buy(answer))


def _per_price(agents: int, choice: PlanChoice, plan: Plan | None = None) -> float | None:
    """Return tok/s or turns a minute per 1000 of the price; those of the best plan where none is
    given.
    """
    plan = plan or next(iter(choice.plans), None)
    price = choice.rig.price
    if plan and price:
        return 1000 * _speed(plan, agents) / price
    return None


def _rig_figures(
    answer: PlanAnswer,
    of_best: Callable[[Callable[[Plan], object]], Callable[[PlanChoice], object]],
) -> tuple[Column[PlanChoice], ...]:
    agents = answer.goal.agents
    if answer.goal.shape is None:
        return (
            Column("tok_s", "TOK/S", of_best(lambda p: _at(p, agents).effective_tok_s), as_count),
            Column("each", "STREAM", of_best(lambda p: _at(p, agents).task_tok_s), as_count),
            Column("context", "CONTEXT", of_best(lambda p: p.rated.context_each), as_count),
        )
    return (
        Column("turns_per_min", "TURNS/MIN", of_best(lambda p: _speed(p, agents)), _one_digit),
        Column("warm", "WARM", of_best(lambda p: p.outlook and p.outlook.warm_sessions)),
        Column("context", "CONTEXT", of_best(lambda p: p.setup.context), as_count),
    )


def _speed(plan: Plan, agents: int) -> float:
    """Return the turns a minute of sessions, of tasks the tok/s."""
    session = plan.rated.session
    return session.turns_per_min if session is not None else _at(plan, agents).effective_tok_s


def _price_title(answer: PlanAnswer) -> str:
    return "TOK/S PER 1000" if answer.goal.shape is None else "TURNS/MIN PER 1000"


def _rig_words(choice: PlanChoice) -> str:
    """Return a rig's name with the price of one card, where all are alike."""
    rig = choice.rig
    alike = len({card.id for card in rig.cards}) == 1
    if rig.price is None or len(rig.cards) == 1 or not alike:
        return rig.title
    return f"{rig.title} @{rig.price / len(rig.cards):,.0f} each"


def what_to_buy(answer: PlanAnswer) -> str:
    """Name the cheapest rig that meets the requirement and the one with the most speed for its
    money.
    """
    agents = answer.goal.agents
    fitting = [choice for choice in answer.choices if choice.plans]
    promising = [choice for choice in fitting if choice.plans[0].rated.keeps_promise]
    if answer.goal.limits:
        promise = "--slo and room for every agent"
    else:
        promise = "room for every agent"
    if not promising:
        return f"None of them meets the requirement: {promise}."
    chosen = answer.recommended
    if chosen.rig.price is None:
        fastest = f"Fastest that meets the requirement ({promise}): {chosen.rig.title}."
        return f"{fastest} RIG@PRICE, the price of one card, says what to buy."
    buy = (
        f"Buy {chosen.rig.title}: at {chosen.rig.price:,.0f} the cheapest that meets the "
        f"requirement ({promise})"
    )
    return f"{buy}; {_for_the_money(agents, chosen, promising, fitting)}."


def _for_the_money(
    agents: int, chosen: PlanChoice, promising: Sequence[PlanChoice], fitting: Sequence[PlanChoice]
) -> str:
    """Say which of those that meet the requirement gives the most tok/s per price."""

    def per_price(choice: PlanChoice) -> float:
        return _per_price(agents, choice) or 0.0

    best_value = max(promising, key=per_price)
    figure = f"{per_price(best_value):,.0f} tok/s per 1000"
    if chosen.plans[0].rated.session is not None:
        figure = f"{per_price(best_value):,.1f} turns/min per 1000"
    if per_price(best_value) >= max(map(per_price, fitting)):
        scope = ""
    else:
        scope = " of those that meet it"
    if best_value is chosen:
        return f"it also gives the most for its money{scope}, {figure}"
    return f"{best_value.rig.title} gives the most for its money{scope}, {figure}"


def _print_more(answer: PlanAnswer, best: Plan) -> None:
    band = "8 of 10 measurements lie between LOW and HIGH"
    reasons = dict.fromkeys(level.band_why for level in best.predicted if level.band_why)
    _say(": ".join(filter(None, [band, "; ".join(reasons)])))
    _section(
        f"Memory of one {best.memory.card.id} ({format_bytes(best.memory.usable_bytes)} usable)"
    )
    _memory(best)
    _section("Why", best.why)
    rules = []
    for finding in best.rated.findings:
        if finding.verdict in ("costs", "depends"):
            advice = " -> ".join(filter(None, [finding.sentence, finding.remedy]))
            rules.append(f"{finding.verdict}: {advice} [{finding.source}]")
    if rules:
        _section("Rules that apply", rules)
    _rejected(answer)
    if answer.notes:
        _section("Notes", answer.notes)


def _links(choice: PlanChoice) -> str:
    """Describe the usual link between cards, and the pairs that have another."""
    rig = choice.rig
    order = choice.order
    usual = choice.rig.default_link

    def words(link: CardLink) -> str:
        if link.kind == "nvlink":
            peers = ""
        elif link.p2p:
            peers = ", peer access"
        else:
            peers = ", no peer access"
        return f"{link.title or link.kind}{peers}"

    links = [] if usual is None else [words(usual)]
    links += [
        f"{words(link)} between {order[a]} and {order[b]}"
        for a, b, link in rig.pairs
        if link != usual
    ]
    return "; ".join(links)


def _what(plan: Plan) -> str:
    setup = plan.setup
    return setup_words(
        setup.layout,
        setup.quant,
        setup.kv,
        setup.spec,
        engine_words(setup.engine, graphs=setup.graphs),
    )


def engine_words(engine: str, *, graphs: bool) -> str:
    if graphs:
        return engine
    return f"{engine}, eager"


def setup_words(
    layout: Layout, quant: Quant, kv: KvType, spec: Speculation | None, engine: str
) -> str:
    """Return a setup as `2 x TP=1, INT4, FP8 e5m2 KV, mtp n=3 (vllm)`; a KV cache of 16 bits and
    no drafts are not named.
    """
    parts = [str(layout), quant.title]
    if kv.family != "half":
        parts.append(f"{kv.title} KV")
    if spec is not None:
        parts.append(str(spec))
    return f"{', '.join(parts)} ({engine})"


def rejected_words(layout: Layout, quants: Iterable[str], engine: str) -> str:
    return f"{layout}, {', '.join(find_quant(name).title for name in quants)} ({engine})"


def _at(plan: Plan, agents: int) -> Predicted:
    return next((p for p in plan.predicted if p.concurrency == agents), plan.predicted[-1])


_TURN_WORDS = "TURNS/MIN: of all sessions; FIRST TOKEN: of a turn"
_FIGURE_WORDS = "TOK/S: all agents, reading prompts included; STREAM: one answer while it streams"
_text_column = partial(Column, right=False)
# Figures at one number of agents, of layouts and of levels alike
_FIGURES: tuple[Column[Predicted], ...] = (
    Column("effective_tok_s", "TOK/S", lambda p: p.effective_tok_s, as_count),
    Column("low", "LOW", lambda p: p.low, as_count, rank=1),
    Column("high", "HIGH", lambda p: p.high, as_count, rank=1),
    Column("task_tok_s", "STREAM", lambda p: p.task_tok_s, as_count),
    Column("ttft_ms", "FIRST TOKEN", lambda p: format_seconds(p.ttft_ms / 1000)),
)
SPEEDS: tuple[Column[Predicted], ...] = (
    Column("concurrency", "AGENTS", lambda p: p.concurrency),
    *_FIGURES,
    Column("tpot_ms", "TOKEN EVERY", lambda p: f"{p.tpot_ms:.1f} ms", rank=1),
)
PUBLISHED: tuple[Column[FigureBeside], ...] = (
    Column("concurrency", "AGENTS", lambda figure: figure.concurrency),
    Column("input_tokens", "IN", lambda figure: _length(figure, figure.input_tokens)),
    Column("output_tokens", "OUT", lambda figure: _length(figure, figure.output_tokens)),
    Column("metric", "COUNTED", lambda figure: figure.metric, right=False),
    Column(
        "published_tok_s",
        "PUBLISHED",
        lambda figure: figure.published_tok_s,
        partial(number, digits=1),
    ),
    Column(
        "predicted_tok_s",
        "PREDICTED",
        lambda figure: figure.predicted_tok_s,
        partial(number, digits=1),
    ),
    Column(
        "uncorrected_tok_s",
        "UNCORRECTED",
        lambda figure: figure.uncorrected_tok_s,
        partial(number, digits=1),
        optional=True,
    ),
    Column("off", "OFF", lambda figure: signed_percent(figure.off)),
)
Ranked = tuple[PlanChoice, Plan]


def _session_figure(share_of: Callable[[Predicted], float]) -> Callable[[Ranked], float | None]:
    """Return the turns a minute of a layout, times what the band of its tok/s says."""

    def figure(pair: Ranked) -> float | None:
        rated = pair[1].rated
        if rated.session is None:
            return None
        return rated.session.turns_per_min * share_of(_at(pair[1], rated.goal.agents))

    return figure


def _first_token_of_turn(pair: Ranked) -> str | None:
    session = pair[1].rated.session
    return format_seconds(session.first_token_s) if session is not None else None


def _one_digit(figure: float) -> str:
    return f"{figure:.1f}"


# What sessions get of a layout, where they are planned
_SESSION_FIGURES: tuple[Column[Ranked], ...] = (
    Column("turns_per_min", "TURNS/MIN", _session_figure(lambda _: 1.0), _one_digit),
    Column("low", "LOW", _session_figure(lambda p: p.low / p.effective_tok_s), _one_digit, rank=1),
    Column(
        "high", "HIGH", _session_figure(lambda p: p.high / p.effective_tok_s), _one_digit, rank=1
    ),
    Column("first_token", "FIRST TOKEN", _first_token_of_turn),
)


def signed_percent(share: float) -> str:
    return f"{100 * share:+z.0f} %"


def _length(figure: FigureBeside, tokens: int) -> str:
    if figure.lengths_published:
        return f"{tokens:,}"
    return f"{tokens:,}*"


def _layouts(answer: PlanAnswer, ranked: Sequence[Ranked]) -> None:
    """Print the table of the best twelve, and why those that cannot start do not."""
    agents = answer.goal.agents

    def figure(column: Column[Any]) -> Column[Ranked]:
        return replace(column, value=lambda pair: column.value(_at(pair[1], agents)))

    columns: list[Column[Ranked]] = [
        _text_column("layout", "LAYOUT", lambda pair: str(pair[1].setup.layout))
    ]
    if len(answer.engines) > 1:
        columns.append(_text_column("engine", "ENGINE", lambda pair: pair[1].setup.engine))
    columns += [
        _text_column("quant", "WEIGHTS", lambda pair: pair[1].setup.quant.title),
        _text_column("kv", "KV", lambda pair: pair[1].setup.kv.title, rank=3),
        _text_column("spec", "DRAFTS", lambda pair: _drafts(pair[1]), rank=2),
        Column("slots", "SLOTS", lambda pair: pair[1].setup.slots, rank=2),
        Column("context", "CONTEXT", lambda pair: pair[1].rated.context_each, as_count),
        Column("longest", "LONGEST", lambda pair: pair[1].setup.context, as_count, rank=3),
    ]
    if answer.goal.shape is not None:
        columns += _SESSION_FIGURES
        price_text = _one_digit
    else:
        columns += map(figure, _FIGURES)
        price_text = as_count
    columns.append(
        Column(
            "per_price",
            _price_title(answer),
            lambda pair: _per_price(agents, *pair),
            price_text,
            rank=2,
            optional=True,
        )
    )
    print_records(columns, ranked[:12])
    for sentence in dict.fromkeys(pair[1].rated.no_start for pair in ranked[:12]):
        if sentence is not None and sentence != ranked[0][1].rated.no_start:
            _say_wrapped(f"! {sentence}")


def _drafts(plan: Plan) -> str | None:
    """Return them with a mark where they are known not to start; a sentence below says why."""
    spec = plan.setup.spec
    if spec is None:
        return None
    if plan.rated.no_start is not None:
        return f"{spec} (!)"
    return str(spec)


def _memory(plan: Plan) -> None:
    usable = plan.memory.usable_bytes

    def bar(term: Term) -> str:
        share = term.bytes / usable
        if share > 0.005:
            return "█" * max(1, round(share * _BAR))
        return "▏"

    def how(term: Term) -> str:
        if term.inside:
            return term.how
        return f"{term.how}; beside the budget"

    columns: list[Column[Term]] = [
        _text_column("term", "TERM", lambda term: term.name),
        Column("gib", "GiB", lambda term: f"{term.bytes / GIB:.2f}"),
        Column("share", "OF CARD", lambda term: f"{term.bytes / usable * 100:.0f} %"),
        _text_column("bar", "", bar, rank=1),
        _text_column("how", "HOW", how),
    ]
    print_records(columns, plan.memory.terms)
    setup = plan.setup
    _say(f"at once: {setup.slots} sequence(s) of {plan.largest_context:,} tokens")


def _commands(answer: PlanAnswer, plan: Plan) -> list[str]:
    return [*commands_of(answer, plan), *filter(None, [gateway_line(plan.setup, plan.rated.rig)])]


def _rejected(answer: PlanAnswer) -> None:
    """Print why layouts were rejected; layouts rejected by the same rule share a line."""
    for choice in answer.choices:
        if not choice.rejected:
            continue
        if len(answer.choices) == 1:
            _section("Rejected")
        else:
            _section(f"Rejected on {choice.rig.title}")
        rest: Sequence[Rejected] = choice.rejected
        heads = [rejected for rejected in rest if rejected.rule == "heads"]
        if len(heads) > 1:
            sizes = ", ".join(f"TP={rejected.layout.tp}" for rejected in heads)
            _say(f"  {sizes}: e.g. {heads[-1].reason}")
            rest = [rejected for rejected in rest if rejected not in heads]
        for rejected in rest[:_DROPPED]:
            name = rejected_words(rejected.layout, rejected.quants, rejected.engine)
            line = f"  {name}: {rejected.reason}"
            if rejected.remedy is not None:
                line += f" -> {rejected.remedy}"
            _say(line)
        if len(rest) > _DROPPED:
            _say(f"  and {len(rest) - _DROPPED} more: --json lists all")


def _section(title: str, lines: Iterable[str] = ()) -> None:
    _say("\n  ".join([f"\n{title}", *lines]))


def _say_wrapped(line: str, end: str = "") -> None:
    """Print a line, on a terminal broken to its width; `end` stands where a command goes on."""
    width = terminal_width()
    breaks = TextWrapper(
        width or 0, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    breaks.width -= len(end)
    parts = [line]
    if width is not None:
        parts = breaks.wrap(line)
    _say(f"{end}\n".join(parts))


def _say(text: str) -> None:
    print(text)  # noqa: T201
