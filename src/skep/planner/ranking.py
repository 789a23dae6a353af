"""What a setup is worth for a goal: its speed with the band around it, its context, and what it
does at several concurrencies. Which of several goes first is decided in `skep.planner.order`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.gpus import Device
from skep.catalog.session_shapes import find_shape
from skep.planner.candidates import PlanGoal, held_tokens, sizing_card
from skep.planner.correction import Correction, correction
from skep.planner.memory import (
    MemoryPlan,
    longest_context,
    longest_shared_context,
    memory,
)
from skep.planner.predict import PredictedOutcome, SpeedModel, prospect
from skep.planner.published import is_measured
from skep.planner.rules import DRAFTS_FAIL, Finding
from skep.planner.session_outlook import (
    SessionLevel,
    estimated_level,
    session_level,
    warm_sessions,
)
from skep.planner.setup import Rig, Setup
from skep.planner.step import UNTUNED, Constants, StepTuning, fitted_bands, published_constants

FEATURES = ("everybody", "agents", "crowd", "spec", "tp", "moe", "elsewhere", "engine")
_WORDS = {
    "crowd": "more than 64 agents",
    "spec": "speculation gains more or less with every prompt",
    "tp": "links between cards differ from box to box",
    "moe": "which experts are read depends on the router",
    "elsewhere": "few measurements on such a card",
    "engine": "few measurements with this engine",
    "ram": "experts are read from system memory, whose speed is not known",
}
_RAM_BAND = 0.5  # added to the exponent of the band's half width
# Of the predicted speed of vLLM and SGLang on AMD's gaming chips, for which they have few kernels.
# On RDNA 4 vLLM is measured (rows of the R9700). On RDNA 3 and 3.5 no published row of it is
# known: those of Strix Halo and of the RX 7900 are all of llama.cpp.
_RDNA4_SHARE = 0.7
_RDNA3_SHARE = 0.5
# exponent of a single agent's speed in throughput: a swarm ends with its last task alone
_ALONE = 0.25


class Band(msgspec.Struct, frozen=True):
    """Factors on the predicted speed. `why` says what makes it wide."""

    low: float
    high: float
    why: str = ""


def features(setup: Setup, card: Device, concurrency: int) -> tuple[float, ...]:
    """Return what makes predictions better or worse, as zeros and ones; the first is a one."""
    well_measured = card.vendor == "nvidia" and card.family in ("ampere", "ada", "blackwell")
    flags = (
        True,
        concurrency > 1,
        concurrency > 64,
        setup.spec is not None,
        setup.layout.tp > 1,
        setup.model.is_moe,
        not well_measured,
        not kind_of(setup.engine).well_measured,
    )
    return tuple(float(flag) for flag in flags)


def band(setup: Setup, card: Device, concurrency: int, *, calibrated: bool = False) -> Band:
    fitted = fitted_bands()
    values = features(setup, card, concurrency)
    wide = sum(fitted.get(name, 0.0) * value for name, value in zip(FEATURES, values, strict=True))
    if setup.cpu_moe:
        wide += _RAM_BAND
    if calibrated:
        wide += fitted.get("calibrated", 0.0)
    half = math.exp(min(wide, 1.6))
    causes = [
        name
        for name, value in zip(FEATURES, values, strict=True)
        if value and fitted.get(name, 0.0) > 0.15
    ]
    if setup.cpu_moe:
        causes.append("ram")
    why = "; ".join(_WORDS[name] for name in causes if name in _WORDS)
    return Band(math.exp(-half), math.exp(half), why)


class Basis(msgspec.Struct, frozen=True):
    """What speeds are computed with. `tuning`: what a calibration on this machine found."""

    constants: Constants
    tuning: StepTuning = UNTUNED
    calibrated: bool = False
    note: str = ""


BasisOf = Callable[[str], Basis]  # by engine


def published_basis(engine: str) -> Basis:  # noqa: ARG001
    return Basis(published_constants())


class Predicted(msgspec.Struct, frozen=True):
    """At `concurrency` agents. `low` and `high` bound the effective tok/s in 8 of 10 cases."""

    concurrency: int
    effective_tok_s: float
    task_tok_s: float
    ttft_ms: float
    tpot_ms: float
    low: float
    high: float
    band_why: str = ""


class Rated(msgspec.Struct, frozen=True):
    """A setup that fits and breaks no rule, with what it does at the goal's number of agents."""

    setup: Setup
    rig: Rig
    card: Device  # that sizes the pool
    findings: tuple[Finding, ...]
    prospect: SpeedModel
    outcome: PredictedOutcome
    goal: PlanGoal
    over_limit: float  # the worst figure as a share of its limit; 1 or less is within
    # What the goal is about: tok/s of all agents, turns a minute of their sessions, or tasks a
    # second of one.
    speed: float
    low: float  # the least `speed` in 8 of 10 cases
    alone_tok_s: float  # of a single agent
    context_each: int  # tokens in every slot at once
    published: bool = True  # somebody made a checkpoint in this format
    on_paper: bool = False  # it fits, but with too little left for what was not counted
    holds_all: bool = True  # the tasks of all agents at once
    measured: bool = False  # somebody has published a figure of this layout on such cards
    corrected: Correction | None = None  # by others' rows of this layout
    session: SessionLevel | None = None  # what the agents' sessions get, where they are planned
    window_tokens: int = 0  # the longest context of one session beside the others
    warm_sessions: int = 0  # that the KV pools hold

    @property
    def score(self) -> float:
        """More is better. Throughput counts what a single agent gets, too."""
        if self.goal.kind == "latency":
            return self.speed
        return float(self.speed * self.alone_tok_s**_ALONE)

    @property
    def first_token_s(self) -> float:
        """The wait for an answer: of a turn, where sessions are planned."""
        if self.session is not None:
            return self.session.first_token_mean_s
        return self.outcome.ttft_s

    @property
    def slots(self) -> int:
        """Of all replicas."""
        return (self.setup.slots or 1) * self.setup.layout.replicas

    @property
    def no_start(self) -> str | None:
        """Why somebody could not start it with its drafts on such cards; None where nobody says
        so.
        """
        failures = (finding for finding in self.findings if finding.rule == DRAFTS_FAIL)
        failure = next(failures, None)
        return failure.sentence if failure is not None else None

    @property
    def keeps_promise(self) -> bool:
        """Within --slo, with room for the whole task of every agent, and not on paper only."""
        return self.over_limit <= 1.0 and self.holds_all and not self.on_paper

    def memory(self) -> MemoryPlan:
        assert self.setup.context is not None
        return memory(self.setup, self.card, context=self.setup.context)

    def full_memory(self) -> MemoryPlan:
        """Return the memory of one card with a whole task in every slot."""
        slots = self.setup.slots or 1
        return memory(
            self.setup,
            self.card,
            context=held_tokens(self.goal, self.setup, slots),
            slots=slots,
            at_once=slots,
        )


def coarse(speed_model: SpeedModel, goal: PlanGoal) -> float:
    """Return the tokens a second of one decode step with the agents' sequences in it, queues and
    prompts left out.
    """
    if goal.kind == "latency":
        streams = 1
    else:
        streams = min(goal.agents, speed_model.slots * speed_model.setup.layout.replicas)
    return speed_model.stream_tok_s(goal.load()) * streams


def speed_model_of(
    setup: Setup, rig: Rig, goal: PlanGoal, basis: Basis, agents: int | None = None
) -> SpeedModel:
    """Return the speed model of a setup, corrected by others' rows where there are any.

    `agents`: at another number of them than the goal's.
    """
    corrected = correction_of(setup, rig, basis, agents or goal.agents)
    if corrected is None:
        return uncorrected_model(setup, rig, goal, basis)
    return prospect(setup, rig, basis.constants, context=goal.need_tokens, tuning=corrected.tuning)


def uncorrected_model(setup: Setup, rig: Rig, goal: PlanGoal, basis: Basis) -> SpeedModel:
    """Return what the formulas and this machine's calibration say, whatever others measured of the
    layout.
    """
    return prospect(setup, rig, basis.constants, context=goal.need_tokens, tuning=basis.tuning)


def correction_of(setup: Setup, rig: Rig, basis: Basis, agents: int) -> Correction | None:
    """Return what others' rows of this layout correct; None where there are none, or this machine
    was measured.
    """
    if basis.tuning is not UNTUNED:
        return None
    agents = min(agents, (setup.slots or agents) * setup.layout.replicas)  # the others wait
    around = band(setup, sizing_card(rig, setup.layout), agents)
    return correction(setup, rig, basis.constants, agents, math.log(around.high))


def holds_all(setup: Setup, goal: PlanGoal) -> bool:
    return (setup.slots or 1) * setup.layout.replicas >= goal.agents


def on_paper(setup: Setup, rig: Rig, goal: PlanGoal) -> bool:
    """Return whether it fits with too little to spare, every slot with a whole task in it."""
    slots = setup.slots or 1
    card = sizing_card(rig, setup.layout)
    held = held_tokens(goal, setup, slots)
    context = min(held, setup.context or held)
    return memory(setup, card, context=context, slots=slots, at_once=slots).fits_on_paper_only


def context_each(setup: Setup, card: Device, goal: PlanGoal, pinned: int | None = None) -> int:
    """Return the tokens that every slot can hold at once: a whole task, and more where a margin
    stays free.
    """
    longest = longest_context(setup, card, setup.slots or 1, with_margin=True)
    held = max(longest, goal.need_tokens)
    return min(held, pinned or held)


def kernels_share(setup: Setup, card: Device) -> float:
    """Return the share of the predicted speed that is believed: less where an engine has few
    kernels for a card.
    """
    if not card.family.startswith("rdna") or kind_of(setup.engine).reads_gguf:
        return 1.0
    if card.family.startswith("rdna4"):
        return _RDNA4_SHARE
    return _RDNA3_SHARE


def rate(
    setup: Setup,
    rig: Rig,
    goal: PlanGoal,
    findings: tuple[Finding, ...],
    basis: Basis,
    *,
    published: bool = True,
    pinned_context: int | None = None,
) -> Rated:
    card = sizing_card(rig, setup.layout)
    prediction = speed_model_of(setup, rig, goal, basis)
    outcome = prediction.outcome(goal.load())
    session = None
    warm = 0
    if goal.shape is not None:
        shape = find_shape(goal.shape)
        window = window_of(goal, setup)
        session = estimated_level(prediction, shape, goal.agents, window)
        warm = warm_sessions(prediction, shape, window)
    first_token_s = outcome.ttft_s if session is None else session.first_token_mean_s
    total_s = first_token_s + outcome.tpot_s * goal.output_tokens
    figures = {
        "ttft": first_token_s * 1000,
        "tpot": outcome.tpot_s * 1000,
        "total": total_s * 1000,
    }
    if goal.kind == "latency":
        predicted_speed = 1.0 / max(1e-9, total_s)
    elif session is not None:
        predicted_speed = session.turns_per_min
    else:
        predicted_speed = outcome.effective_tok_s
    speed = predicted_speed * kernels_share(setup, card)
    around = band(setup, prediction.card, goal.agents, calibrated=basis.calibrated)
    return Rated(
        setup=setup,
        rig=rig,
        card=card,
        findings=findings,
        prospect=prediction,
        outcome=outcome,
        goal=goal,
        over_limit=max((figures[name] / limit for name, limit in goal.limits), default=0.0),
        speed=speed,
        low=speed * around.low,
        alone_tok_s=prediction.stream_tok_s(goal.load(1)),
        context_each=context_each(setup, card, goal, pinned_context),
        published=published,
        on_paper=on_paper(setup, rig, goal),
        holds_all=holds_all(setup, goal),
        measured=is_measured(setup, rig),
        corrected=correction_of(setup, rig, basis, goal.agents),
        session=session,
        window_tokens=_window(setup, card, goal, pinned_context),
        warm_sessions=warm,
    )


def with_played_sessions(rated: Rated) -> Rated:
    """Return a setup with what its sessions get when they are played, in place of the estimate
    that it was found with.
    """
    goal = rated.goal
    assert goal.shape is not None
    session = session_level(
        rated.prospect, find_shape(goal.shape), goal.agents, window_of(goal, rated.setup)
    )
    if goal.kind == "latency":
        return replace(rated, session=session)
    speed = session.turns_per_min * kernels_share(rated.setup, rated.card)
    low_share = rated.low / rated.speed
    return replace(rated, session=session, speed=speed, low=speed * low_share)


def window_of(goal: PlanGoal, setup: Setup) -> int:
    """Return the context that a session is played with."""
    return min(goal.window_tokens, setup.model.max_context or goal.window_tokens)


def _window(setup: Setup, card: Device, goal: PlanGoal, pinned: int | None) -> int:
    """Return the longest context that one session can have while the others hold theirs."""
    if goal.shape is None:
        return 0
    slots = setup.slots or 1
    if kind_of(setup.engine).has_pool:
        held = held_tokens(goal, setup, slots)
        longest = longest_shared_context(setup, card, slots, held)
    else:
        longest = longest_context(setup, card, slots, with_margin=True)
    return min(longest, pinned or longest)


def levels(agents: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the agents, the agents, and one doubling beyond."""
    doublings = (1 << n for n in range(12))
    return (*(level for level in doublings if level < agents), agents, 2 * agents)


def predict_levels(
    rated: Rated, goal: PlanGoal, basis: Basis, at: tuple[int, ...]
) -> tuple[Predicted, ...]:
    levels_predicted = []
    for level in at:
        if level == goal.agents:
            outcome = rated.outcome
        elif rated.corrected is None:
            outcome = rated.prospect.outcome(goal.load(level))
        else:  # by the rows at about as many agents
            speed_model = speed_model_of(rated.setup, rated.rig, goal, basis, level)
            outcome = speed_model.outcome(goal.load(level))
        around = band(rated.setup, rated.prospect.card, level, calibrated=basis.calibrated)
        levels_predicted.append(
            Predicted(
                concurrency=level,
                effective_tok_s=outcome.effective_tok_s,
                task_tok_s=outcome.task_tok_s,
                ttft_ms=outcome.ttft_s * 1000,
                tpot_ms=outcome.tpot_s * 1000,
                low=outcome.effective_tok_s * around.low,
                high=outcome.effective_tok_s * around.high,
                band_why=around.why,
            )
        )
    return tuple(levels_predicted)
