"""What is known of configurations before anything is measured: the planner's rules, its memory and
its speeds.

`Predictor.setup` is the one translation from a configuration to what the planner works on. What
the planner knows nothing of (batch, flash attention, KV layout, how often a text repeats itself,
...) leaves the figure as it is. On a CPU nothing is foreseen. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec.structs import replace

from skep.catalog.engines import kind_of
from skep.catalog.models import Geometry, find_geometry
from skep.catalog.presets import Preset
from skep.config.presets import contradictions
from skep.deploy.preset_setup import quant_of, setup_of_preset
from skep.errors import UserError
from skep.planner.candidates import sizing_card
from skep.planner.memory import FitResult, fits, memory, usable_bytes, weights_bytes
from skep.planner.predict import PredictedOutcome, prospect
from skep.planner.ranking import Basis
from skep.planner.rules import refusal
from skep.planner.setup import PlannedLoad, Quant, Rig, Setup
from skep.planner.step import published_constants
from skep.stats.slo import SloLimits
from skep.tuner.knobs import DRAFTS, apply_config, pairs_of
from skep.tuner.records import ConfigFailure, Knob, KnobConfig, TuneGoal, TuneReading
from skep.units import GIB

PREDICTED_KNOBS = (
    "layout", "replicas", "slots", "graphs", "memory_share", "kv", "batched_tokens", "threads",
    "mtp", "eagle", "draft", "dflash", "kv_ram",
)  # fmt: skip
RUN_S = 6.0  # a reading takes at least
TOO_LONG_S = 40.0  # for a reading, where fewer tasks will do
# Tasks of a reading, of one agent and of all.
LEAST_EACH = 3
LEAST = 6
MOST_DOUBLINGS = 6
READING_S = 15.0  # where nothing is foreseen
_SLACK = 0.02  # of a card: where no more is missing, a start is tried
_READ_BYTES_S = 1.5 * GIB  # weights into memory


class Predictor:
    """The knobs of a search, and what is known of configurations. Answers are cached: a search
    asks for the same ones many times.

    `model` and `quant`: as they were read from files; None: by their names. `rig` None: nothing is
    foreseen.
    """

    def __init__(
        self,
        base: Preset,
        rig: Rig | None,
        aim: TuneGoal,
        knobs: Sequence[Knob],
        basis: Basis | None = None,
        model: Geometry | None = None,
        quant: Quant | None = None,
    ) -> None:
        self.base = base
        self.rig = rig
        self.aim = aim
        self.knobs = tuple(knobs)
        # Worth turning again, or together, when the other one has been turned.
        self.pairs = pairs_of(self.knobs)
        self._need_tokens = aim.input_tokens + aim.output_tokens
        self._basis = basis or Basis(published_constants())
        self._model = model or find_geometry(base.model)
        self._quant = quant or quant_of(base, self._model)
        self._outcomes: dict[tuple[object, ...], PredictedOutcome | None] = {}
        self._refusals: dict[KnobConfig, str | None] = {}
        self._spare: dict[KnobConfig, float | None] = {}
        # Those of the user's own preset: they are not held against a configuration.
        self._base_contradictions = {
            contradiction.message for contradiction in contradictions(base)
        }
        self._predicted_knobs = tuple(
            sorted(knob.name for knob in self.knobs if knob.name in (*PREDICTED_KNOBS, *DRAFTS))
        )

    def refusal(self, config: KnobConfig) -> str | None:
        if config not in self._refusals:
            self._refusals[config] = self._find_refusal(config)
        return self._refusals[config]

    def predict(self, config: KnobConfig) -> float | None:
        """Return the metric of the goal; None: nothing is foreseen."""
        outcome = self.outcome(config)
        if outcome is None:
            return None
        if self.aim.metric == "task_tok_s":
            return outcome.task_tok_s
        return outcome.effective_tok_s

    def start_s(self, config: KnobConfig) -> float:
        engine = self.base.engine
        setup = self.setup(config)
        seconds = kind_of(engine).start_s
        if config.get("graphs", self.base.options.graphs) is not False:
            seconds += kind_of(engine).graphs_s
        if setup is None:
            return seconds
        drafts = setup.spec is not None and setup.spec.method == "mtp"
        return seconds + weights_bytes(setup.model, setup.quant, with_draft=drafts) / _READ_BYTES_S

    def reading_s(self, config: KnobConfig) -> float:
        outcome = self.outcome(config)
        if outcome is None or outcome.effective_tok_s <= 0:
            return READING_S
        tasks_per_s = outcome.effective_tok_s / self.aim.output_tokens
        return tasks_for(self.aim.concurrency, [tasks_per_s]) / tasks_per_s

    def figure(self, config: KnobConfig) -> TuneReading | ConfigFailure:
        """Return one reading of the goal's load, as the planner foresees it, or why it does not
        start.
        """
        fit = self.fit(config)
        if fit is not None and fit.over_bytes > 0:
            remedy = "fewer slots, a smaller KV type, or another share of the card"
            return ConfigFailure("out-of-memory", f"SIMULATED: {fit.sentence}", remedy=remedy)
        outcome = self.outcome(config)
        if outcome is None:
            return ConfigFailure("no-start", "the planner has no figure for it")
        speed = outcome.effective_tok_s
        tasks_per_s = speed / self.aim.output_tokens
        ttft_ms = 1000 * outcome.ttft_s
        tpot_ms = 1000 * outcome.tpot_s
        tasks = tasks_for(self.aim.concurrency, [tasks_per_s])
        times_ms = {
            "ttft": ttft_ms,
            "tpot": tpot_ms,
            "total": ttft_ms + tpot_ms * self.aim.output_tokens,
        }
        if self.aim.slo:
            limits = SloLimits.parse(self.aim.slo).limits
        else:
            limits = ()
        return TuneReading(
            figure=self.predict(config),
            effective_tok_s=speed,
            task_tok_s=outcome.task_tok_s,
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            wall_s=tasks / tasks_per_s,
            requests=tasks,
            over_limit=max((times_ms[limit.name] / limit.ms for limit in limits), default=0.0),
        )

    def spare_bytes(self, config: KnobConfig) -> float | None:
        """Return the bytes that are left on a card, less than 0 where they are short; None: not
        known.
        """
        if config not in self._spare:
            self._spare[config] = self._computed_spare_bytes(config)
        return self._spare[config]

    def _computed_spare_bytes(self, config: KnobConfig) -> float | None:
        placed = self._placed(config)
        if placed is None:
            return None
        setup, rig = placed
        card = sizing_card(rig, setup.layout)
        plan = memory(setup, card, context=self._context(setup), slots=setup.slots)
        return float(min(-plan.over_inside_bytes, -plan.over_outside_bytes))

    def setup(self, config: KnobConfig) -> Setup | None:
        """Return the configuration as the planner sees it; None where model or format are not
        known, or it contradicts itself.
        """
        if self._model is None or self._quant is None:
            return None
        try:
            preset = apply_config(self.base, config)
        except UserError:
            return None
        return setup_of_preset(preset, self._model, self._quant)

    def outcome(self, config: KnobConfig) -> PredictedOutcome | None:
        """Return what the planner foresees of the goal's load; None: it has nothing to say."""
        key = tuple(config.get(name) for name in self._predicted_knobs)
        if key not in self._outcomes:
            self._outcomes[key] = self._computed_outcome(config)
        return self._outcomes[key]

    def _computed_outcome(self, config: KnobConfig) -> PredictedOutcome | None:
        placed = self._placed(config)
        if placed is None:
            return None
        setup, rig = placed
        if setup.spec is not None and setup.spec.method == "ngram":
            # Drafts from the text are worth what the text is.
            setup = replace(setup, spec=None)
        speed_model = prospect(
            setup,
            rig,
            self._basis.constants,
            context=self._need_tokens,
            tuning=self._basis.tuning,
        )
        if speed_model.pool_tokens <= 0:
            return None
        aim = self.aim
        return speed_model.outcome(
            PlannedLoad(aim.concurrency, aim.input_tokens, aim.output_tokens)
        )

    def fit(self, config: KnobConfig) -> FitResult | None:
        """Return whether a configuration fits its cards, with a sentence; None: not known."""
        setup = self.setup(config)
        rig = self.rig
        if setup is None or rig is None:
            return None
        return fits(
            setup, sizing_card(rig, setup.layout), context=self._context(setup), slots=setup.slots
        )

    def _find_refusal(self, config: KnobConfig) -> str | None:
        """Return which rule a configuration breaks, of its engine, of presets or of the planner,
        or that it does not fit; None: nothing speaks against it.
        """
        try:
            preset = apply_config(self.base, config)
        except UserError as error:
            return error.message
        messages = (
            contradiction.message
            for contradiction in contradictions(preset)
            if contradiction.message not in self._base_contradictions
        )
        message = next(messages, None)
        setup = self.setup(config)
        rig = self.rig
        if message is not None or setup is None or rig is None:
            return message
        finding = refusal(setup, rig)
        if finding is not None:
            return finding.sentence
        fit = self.fit(config)
        card = sizing_card(rig, setup.layout)
        if fit is not None and fit.over_bytes > _SLACK * usable_bytes(card):
            return fit.sentence
        return None

    def _placed(self, config: KnobConfig) -> tuple[Setup, Rig] | None:
        """Return what the planner can compute with; None: it is not known, or on more cards than
        there are.
        """
        setup = self.setup(config)
        rig = self.rig
        if setup is None or rig is None or setup.layout.cards > len(rig.cards):
            return None
        return (setup, rig)

    def _context(self, setup: Setup) -> int:
        return setup.context or ceil(self._need_tokens / 256) * 256


def tasks_for(concurrency: int, rates: Sequence[float], least_s: float = RUN_S) -> int:
    """Return the tasks of a reading that all sides get, from the tasks a second of those that are
    known.

    Three for each agent, doubled until the fastest is busy for `least_s`; no more than the slowest
    does in time, down to one for each agent.
    """
    choices = (max(LEAST, LEAST_EACH * concurrency), 2 * concurrency, concurrency)
    positive_rates = [rate for rate in rates if rate > 0]
    if not positive_rates:
        return choices[0]
    slowest = min(positive_rates)
    fastest = max(positive_rates)
    count = next((choice for choice in choices if choice / slowest <= TOO_LONG_S), concurrency)
    for _ in range(MOST_DOUBLINGS):
        if count / fastest >= least_s or 2 * count / slowest > TOO_LONG_S:
            break
        count *= 2
    return count
