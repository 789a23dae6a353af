"""The planner's own prediction as the truth of a rig that is not here: what `skep tune --simulate` climbs on.

No engine knows better here, so that foresight is right but for the noise. Memory is taken without the slack that the
tuner grants the planner's arithmetic: what is over by a little is tried, and fails as it would.
"""

from __future__ import annotations

from skep.planner.candidates import sizing_card
from skep.planner.fitting_in import fits
from skep.planner.forecast import Outcome
from skep.stats.slo import Limits
from skep.tuner.predictions import Foresight, rig_of
from skep.tuner.reading_size import tasks_for
from skep.tunings import Config, Failure, Reading


class PlannedTruth:
    """A `skep.tuner.simulated.Truth` over what is foreseen."""

    def __init__(self, terrain: Foresight) -> None:
        self._terrain = terrain
        self._aim = terrain.ground.aim
        self._limits = Limits.parse(self._aim.slo).limits if self._aim.slo else ()

    def figure(self, config: Config) -> Reading | Failure:
        found = self.at(config, self._aim.concurrency)
        if isinstance(found, Failure):
            return found
        figure, watts = self._terrain.foresee(config), self._terrain.watts(config)
        return Reading(
            figure, found.effective_tok_s, found.task_tok_s, found.ttft_ms, found.tpot_ms, found.wall_s, found.requests,
            over_limit=found.over_limit, tok_per_joule=(found.effective_tok_s or 0.0) / watts if watts else None,
        )  # fmt: skip

    def dies(self, config: Config) -> Failure | None:  # noqa: ARG002
        return None

    def at(self, config: Config, concurrency: int) -> Reading | Failure:
        failure = self._out_of_memory(config)
        if failure is not None:
            return failure
        outcome = self._terrain.outcome(config, concurrency)
        if outcome is None:
            return Failure("no-start", "the planner has no figure for it")
        return self._reading(outcome, concurrency)

    def start_s(self, config: Config) -> float:
        return self._terrain.start_s(config)

    def _reading(self, outcome: Outcome, concurrency: int) -> Reading:
        per_s = outcome.effective_tok_s / self._aim.output_tokens
        tasks = tasks_for(concurrency, [per_s])
        ttft_ms, tpot_ms = 1000 * outcome.ttft_s, 1000 * outcome.tpot_s
        total_ms = ttft_ms + tpot_ms * self._aim.output_tokens
        seen = {"ttft": ttft_ms, "tpot": tpot_ms, "total": total_ms}
        over = max((seen[limit.name] / limit.ms for limit in self._limits), default=0.0)
        speed = outcome.effective_tok_s
        return Reading(speed, speed, outcome.task_tok_s, ttft_ms, tpot_ms, tasks / per_s, tasks, over_limit=over)

    def _out_of_memory(self, config: Config) -> Failure | None:
        ground = self._terrain.ground
        setup, rig = self._terrain.setup(config), rig_of(config, ground)
        if setup is None or rig is None:
            return None
        context = setup.context or ground.need_tokens
        verdict = fits(setup, sizing_card(rig, setup.layout), context=context, slots=setup.slots)
        if verdict.over_bytes <= 0:
            return None
        words = f"SIMULATED: {verdict.sentence}"
        return Failure("out-of-memory", words, remedy="fewer slots, a smaller KV type, or another share of the card")
