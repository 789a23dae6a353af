"""What to say where a model fits nowhere: what is short, and what would fit.

Every way that is named was tried. Knows nothing of speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import gguf_engine, kind_of
from skep.catalog.models import Geometry
from skep.catalog.session_shapes import session_shapes
from skep.errors import DoesNotFit, UserError
from skep.planner.candidates import AGENT_OUTPUT_TOKENS, Pins, PlanGoal
from skep.planner.choose import PlanChoice, bases
from skep.planner.session_outlook import with_sessions
from skep.planner.setup import QUANTS, Rig, Setup, default_link

_MOST_CARDS = 16
_RAM_SIZES_GIB = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)  # that machines are sold with
_LEAST_PROMPT = 1024  # tokens


def fits_nowhere(
    model: Geometry, choice: PlanChoice, goal: PlanGoal, pins: Pins, engine: str
) -> UserError:
    """Return the error for a choice without plans: exit 3 where memory is to blame, 2 where the
    flags are.
    """
    if not choice.rejected:
        return UserError(f"nothing was left to try on `{choice.rig.title}`")
    short = [rejected for rejected in choice.rejected if rejected.rule == "memory"]
    if not short:
        first = choice.rejected[0]
        return UserError(first.reason, hint=first.remedy)
    nearest = max(short, key=lambda rejected: (rejected.layout.cards_each, -rejected.layout.pp))
    trials = would_fit(model, choice.rig, goal, pins, engine)
    return DoesNotFit(
        f"{model.id} does not fit `{choice.rig.title}`: {nearest.reason}", hint=trials.words
    )


@dataclass(slots=True)
class WouldFit:
    """What was tried where nothing fits: `ways` are those that fit, `tried` what was in vain."""

    ways: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        if self.ways:
            return f"what would fit: {'; '.join(self.ways)}"
        if self.tried:
            return f"nothing like it fits either (tried: {', '.join(self.tried)})"
        return "nothing smaller of it is known: choose a smaller model, or cards with more memory"

    def add(self, way: str | None, tried: str) -> None:
        """Note a way, or where it is None what was tried in vain."""
        if way is not None:
            self.ways.append(way)
        else:
            self.tried.append(tried)


class PlanSought(msgspec.Struct, frozen=True):
    """What does not fit, and a trial of anything like it."""

    model: Geometry
    rig: Rig
    goal: PlanGoal
    pins: Pins
    engine: str

    def setups(
        self,
        *,
        rig: Rig | None = None,
        goal: PlanGoal | None = None,
        pins: Pins | None = None,
        engine: str | None = None,
    ) -> list[Setup]:
        """Return what fits where these differ."""
        tried = (rig or self.rig, goal or self.goal, pins or self.pins, engine or self.engine)
        return bases(self.model, *tried, say_why=False)[0]

    @property
    def any_layout(self) -> Pins:
        return replace(self.pins, tp=None, pp=None, ep=None, replicas=None)


def would_fit(model: Geometry, rig: Rig, goal: PlanGoal, pins: Pins, engine: str) -> WouldFit:
    """Try fewer bits on the same cards, less context, more cards of the same kind, and another
    engine.
    """
    plan_sought = PlanSought(model, rig, goal, pins, engine)
    trials = WouldFit()
    _try_fewer_bits(plan_sought, trials)
    _try_less_context(plan_sought, trials)
    _try_more_cards(plan_sought, trials)
    _try_llamacpp(plan_sought, trials)
    _try_system_memory(plan_sought, trials)
    return trials


def _try_fewer_bits(plan_sought: PlanSought, trials: WouldFit) -> None:
    """Try the usual formats below the one that is pinned; without a pin the plan has tried them
    all.
    """
    if plan_sought.pins.quant is None:
        trials.tried.append("every format of 4 bits and more")
        return
    if kind_of(plan_sought.engine).reads_gguf:
        family: tuple[str, ...] = ("q8_0", "q6_k", "q5_k_m", "q4_k_m")
    else:
        family = ("fp8", "gptq", "awq")
    lower = [QUANTS[name] for name in family if QUANTS[name].bits < plan_sought.pins.quant.bits]
    small = next(
        (
            quant
            for quant in lower
            if plan_sought.setups(pins=replace(plan_sought.pins, quant=quant))
        ),
        None,
    )
    if lower:
        trials.add(f"--quant {small.id}" if small is not None else None, "fewer bits")


def _try_less_context(plan_sought: PlanSought, trials: WouldFit) -> None:
    """Halve --context down to a task's length, or else the prompts."""
    goal = plan_sought.goal
    longest = plan_sought.pins.context
    if longest is not None and longest > goal.need_tokens:
        contexts = [*_halves(longest, goal.need_tokens), goal.need_tokens]
        fitting = (
            size
            for size in contexts
            if plan_sought.setups(pins=replace(plan_sought.pins, context=size))
        )
        if plan_sought.setups(pins=replace(plan_sought.pins, context=contexts[-1])):
            context = next(fitting, None)
        else:
            context = None
        trials.add(
            f"--context {context}" if context is not None else None,
            f"{contexts[-1]:,} tokens of context",
        )
        return
    if goal.shape is not None:
        _try_smaller_load(plan_sought, trials)
        return
    prompts = _halves(int(goal.input_tokens), _LEAST_PROMPT)
    if not prompts:
        return
    free = replace(plan_sought.pins, context=None)
    goals = [replace(goal, input_tokens=size) for size in prompts]
    fitting_goals = (shorter for shorter in goals if plan_sought.setups(goal=shorter, pins=free))
    if plan_sought.setups(goal=goals[-1], pins=free):
        shorter = next(fitting_goals, None)
    else:
        shorter = None
    if shorter is None:
        way = None
    else:
        way = f"--prompt-tokens {shorter.input_tokens:.0f}"
    trials.add(way, f"tasks of {goals[-1].need_tokens:,} tokens")


def _try_smaller_load(plan_sought: PlanSought, trials: WouldFit) -> None:
    """Try sessions of the smallest kind, then tasks of the shortest prompts."""
    goal = plan_sought.goal
    free = replace(plan_sought.pins, context=None)
    small = min(session_shapes().values(), key=lambda shape: shape.least_window_tokens)
    loads = {}
    if small.name != goal.shape:
        loads[f"--load {small.name}"] = with_sessions(goal, small, small.least_window_tokens)
    task = PlanGoal(
        kind=goal.kind,
        agents=goal.agents,
        input_tokens=_LEAST_PROMPT,
        output_tokens=AGENT_OUTPUT_TOKENS,
        limits=goal.limits,
    )
    loads[f"--load task --prompt-tokens {_LEAST_PROMPT}"] = task
    fitting = (words for words, load in loads.items() if plan_sought.setups(goal=load, pins=free))
    trials.add(next(fitting, None), f"tasks of {task.need_tokens:,} tokens")


def _halves(tokens: int, smallest: int) -> list[int]:
    """Return half of it, a quarter and so on, down to the least."""
    sizes = []
    while tokens // 2 >= smallest:
        tokens //= 2
        sizes.append(tokens)
    return sizes


def _try_more_cards(plan_sought: PlanSought, trials: WouldFit) -> None:
    rig = plan_sought.rig
    card = rig.cards[0]
    counts = range(len(rig.cards) + 1, 1 if card.unified_memory else _MOST_CARDS + 1)
    for count in counts:
        larger_rig = Rig(
            (card,) * count, rig.default_link or default_link(card), title=f"{count}x {card.id}"
        )
        setups = plan_sought.setups(rig=larger_rig, pins=plan_sought.any_layout)
        if setups:
            cut = "tp" if kind_of(plan_sought.engine).reads_gguf else "pp"
            first = min(setups, key=lambda setup: (getattr(setup.layout, cut), -setup.quant.bits))
            trials.ways.append(f"{count}x {card.id} ({first.layout}, {first.quant.title})")
            return
    if counts:
        trials.tried.append(f"up to {counts[-1]} such cards")


def _try_llamacpp(plan_sought: PlanSought, trials: WouldFit) -> None:
    """Try llama.cpp, and where nothing else fits its formats below 4 bits."""
    pins = plan_sought.any_layout
    other = gguf_engine()
    if not kind_of(plan_sought.engine).reads_gguf and pins.quant is None:
        setups = plan_sought.setups(pins=pins, engine=other)
        way = f"--engine {other} ({setups[0].quant.title})" if setups else None
        trials.add(way, kind_of(other).title)
    below = replace(pins, quant=QUANTS["q3_k_m"])
    if trials.ways or plan_sought.pins.quant == below.quant:
        return
    if kind_of(plan_sought.engine).reads_gguf:
        flags = "--quant q3_k_m"
    else:
        flags = f"--engine {other} --quant q3_k_m"
    fits_below = plan_sought.setups(pins=below, engine=other)
    trials.add(f"{flags}, below 4 bits" if fits_below else None, "Q3_K_M with less than 4 bits")


def _try_system_memory(plan_sought: PlanSought, trials: WouldFit) -> None:
    """Find the least system memory that lets llama.cpp hold the experts which the cards do not."""
    rig = plan_sought.rig
    pins = plan_sought.any_layout
    if not plan_sought.model.is_moe or any(card.unified_memory for card in rig.cards):
        return
    if pins.quant is not None and pins.quant.family != "gguf":
        return
    sizes = [ram_gib for ram_gib in _RAM_SIZES_GIB if ram_gib > (rig.ram_gib or 0)]
    for ram_gib in sizes:
        setups = plan_sought.setups(
            rig=replace(rig, ram_gib=ram_gib), pins=pins, engine=gguf_engine()
        )
        if setups:
            title = setups[0].quant.title
            trials.ways.append(
                f"--engine {gguf_engine()} with {ram_gib} GiB of system memory for experts "
                f"({title})"
            )
            return
    if sizes:
        trials.tried.append(f"experts in up to {sizes[-1]:,} GiB of system memory")
