"""From the flags of `skep tune` to a tuning that can begin: aim, knobs, baseline, terrain. Starts nothing."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from skep import __version__
from skep.catalog.presets import Preset
from skep.cli.bench_common import positive_seconds
from skep.cli.output import note
from skep.cli.tune_ground import Ground, Wishes, ground_for, whole_paths, wishes_of
from skep.cli.tune_knobs import begun, chosen
from skep.cli.tune_preset import base_document, base_of
from skep.cli.tune_prospects import Prospect, print_prospects
from skep.cli.tune_tables import aim_words, config_words, figure_number
from skep.cli.tune_terrain import ground_again, terrain_document, terrain_of
from skep.errors import DoesNotFit, UserError
from skep.host.facts import host_json, read_host
from skep.report.tuning_words import unit_of
from skep.tuner.goal import parse_aim
from skep.tuner.knobs import NO_LONGER_TURNED, config_of, space_of, turned
from skep.tuner.predictions import FORESEEN, Foresight
from skep.tuner.search import Climb
from skep.tunings import Config, Tuning
from skep.units import format_seconds

TRIAL_STARTS, TRIAL_READINGS = 6, 4  # the baseline's two, then two of both sides, each warmed up and read thrice
SURELY = 0.5  # of what a trial is expected to take: expectations err


@dataclass(frozen=True, slots=True)
class Ready:
    """A tuning that has not begun, and what it takes to climb. The id of its value is still empty."""

    tuning: Tuning
    wishes: Wishes
    base: Preset
    terrain: Foresight
    notes: tuple[str, ...] = ()

    def climb(self) -> Climb:
        tuning = self.tuning
        return Climb(self.terrain, tuning.baseline, tuning.aim, budget_s=tuning.budget_s)


def prepare(wishes: Wishes) -> Ready:
    """Everything that can be wrong is found before anything is started."""
    aim = parse_aim(
        wishes.goal, input_tokens=wishes.input_tokens, output_tokens=wishes.output_tokens, slo=wishes.slo,
        min_context=wishes.min_context,
    )  # fmt: skip
    budget_s = positive_seconds(wishes.budget, "--budget", "2h")
    wishes, host = whole_paths(wishes), read_host()
    ground = ground_for(wishes, aim, host)
    named = (wishes.knobs or "").replace(" ", "").split(",")
    space = space_of(ground.base, aim, ground.box, checkpoints=wishes.checkpoints, quants=ground.quants, named=named)
    start, offered = begun(config_of(ground.base, space.knobs), space.knobs, wishes.start)
    knobs = chosen(offered, wishes.knobs, wishes.skip)
    ground = replace(ground, base=turned(ground.base, start))  # also what is set and not turned
    tuning = Tuning(
        id="",
        created_at=time.time(),
        model=ground.base.served_as,
        engine=ground.base.engine,
        rig=ground.rig_words,
        aim=aim,
        budget_s=budget_s,
        seed=random.SystemRandom().randrange(2**31) if wishes.seed is None else wishes.seed,
        simulated=wishes.simulate,
        baseline=Config.of({knob.name: start[knob.name] for knob in knobs}),
        knobs=knobs,
        base=_document(ground, wishes),
        host={} if wishes.simulate else host_json(host),
        skep_version=__version__,
    )
    terrain = terrain_of(ground, tuning, wishes.checkpoints)
    _check(terrain, tuning)
    return Ready(tuning, wishes, ground.base, terrain, (*ground.notes, *space.left_alone))


def prepare_again(tuning: Tuning) -> Ready:
    """As it was begun: preset, knobs, baseline and what is foreseen with are the stored ones."""
    if NO_LONGER_TURNED in tuning.baseline.as_dict:
        hint = f"set it with `nvidia-smi -pl WATTS`, then begin anew with `skep tune {tuning.model}`"
        raise UserError(f"tuning `{tuning.id}` turns the power limit, which skep no longer does", hint=hint)
    wishes, base = wishes_of(tuning.base["wishes"]), base_of(tuning)
    terrain = terrain_of(ground_again(base, tuning.base["terrain"]), tuning, wishes.checkpoints)
    return Ready(tuning, wishes, base, terrain)


def _document(ground: Ground, wishes: Wishes) -> dict[str, Any]:
    wishes = replace(wishes, bandwidth=ground.bandwidth)
    return {**base_document(ground.base), "wishes": asdict(wishes), "terrain": terrain_document(ground)}


def _check(terrain: Foresight, tuning: Tuning) -> None:
    refused = terrain.refusal(tuning.baseline)
    if refused is not None:
        hint = "begin elsewhere with --set, or with another preset"
        kind = DoesNotFit if (terrain.spare_bytes(tuning.baseline) or 0) < 0 else UserError
        raise kind(f"the beginning itself cannot start: {refused}", hint=hint)
    need_s = trial_s(terrain, tuning.baseline)
    if tuning.budget_s < SURELY * need_s:
        what = f"--budget {format_seconds(tuning.budget_s)} is too short for one trial"
        hint = f"two starts of the baseline, and two of both sides, take about {format_seconds(need_s)}"
        raise UserError(what, hint=hint)


def trial_s(terrain: Foresight, config: Config) -> float:
    """What the baseline and deciding about one change take at least."""
    return TRIAL_STARTS * (terrain.start_s(config) + TRIAL_READINGS * terrain.reading_s(config))


def tell(ready: Ready) -> None:
    """Before it begins: from where, what could be tried, how long."""
    tuning = ready.tuning
    mark = "SIMULATED: " if tuning.simulated else ""
    for line in ready.notes:
        note(line)
    note(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}; goal {aim_words(tuning.aim)}")
    note(f"baseline: {config_words(tuning.baseline, tuning.knobs)}")
    foreseen = ready.terrain.foresee(tuning.baseline)
    if foreseen is not None:
        note(f"the planner expects {figure_number(foreseen)} {unit_of(tuning)} of it there")
    found = prospects(ready)
    note(f"{len(found)} changes could come first: time for each, and the gain that the planner foresees")
    print_prospects(found)
    kind = "of virtual time" if tuning.simulated else "at most"
    note(f"budget: {format_seconds(tuning.budget_s)} {kind}; Ctrl-C stops it and keeps the best so far")


def prospects(ready: Ready) -> list[Prospect]:
    climb, terrain = ready.climb(), ready.terrain
    now = terrain.foresee(ready.tuning.baseline)
    found = []
    for move in climb.prospects():
        then = terrain.foresee(move.config)
        (change,) = move.changes
        ratio = then / now if then is not None and now and change.knob in FORESEEN else None
        found.append(Prospect(change, ratio, 60 * climb.minutes(move)))
    return found
