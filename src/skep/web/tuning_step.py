"""Which stored tuning tells the step that won for a run of the leaderboard. Values in, values out.

Only one of the same model on the same machine, of the same figure under the same shape of load: what another load
gained says nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skep.catalog.models import find_geometry
from skep.records import Interval, Run
from skep.report.tuning_words import accepted, ratio_range, ratio_words
from skep.tunings import Tuning
from skep.web.runs_words import host_words, is_near, machine_of
from skep.web.tuning_list import Climbed


@dataclass(frozen=True, slots=True)
class TunedStep:
    """The last step of a tuning that was accepted and stands."""

    tuning: str  # its id
    title: str
    ratio: Interval | None

    def __str__(self) -> str:
        told = "" if self.ratio is None else f": {ratio_words(self.ratio)} (95 %: {ratio_range(self.ratio)})"
        return f"{self.title}{told}, in a tuning under the same load"


def tuned_step(run: Run, best_at: int | None, found: Sequence[Climbed]) -> TunedStep | None:
    """Of the newest that fits; `found` is newest first."""
    for one in found:
        steps = accepted(one.stages)
        if steps and _same_load(run, best_at, one.kept.tuning) and _same_place(run, one.kept.tuning):
            return TunedStep(one.kept.id, steps[-1].title, steps[-1].ratio)
    return None


def _same_load(run: Run, best_at: int | None, tuning: Tuning) -> bool:
    load, aim = run.config.get("workload"), tuning.aim
    if not isinstance(load, Mapping) or aim.metric != "effective_tok_s" or best_at != aim.concurrency:
        return False
    return (load.get("prompt_tokens"), load.get("max_tokens")) == (aim.input_tokens, aim.output_tokens)


def _same_place(run: Run, tuning: Tuning) -> bool:
    if run.simulated is not tuning.simulated or not _same_model(run.model, tuning.model):
        return False
    if run.simulated:
        return machine_of(run) == tuning.rig
    return is_near(run.url) and _machine(run.host) == _machine(tuning.host)


def _machine(host: Mapping[str, Any]) -> tuple[object, ...]:
    return host_words(host), host.get("cpu_model"), host.get("cpu_cores")


def _same_model(a: str, b: str) -> bool:
    if a == b:
        return True
    one, other = find_geometry(a), find_geometry(b)
    return one is not None and other is not None and one.id == other.id
