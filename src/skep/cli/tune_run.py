"""`skep tune` and `skep tune resume`: a search carried out before somebody's eyes, and what is left when it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from skep.cli import tune_stored
from skep.cli.bench_common import Interrupted, run_measuring
from skep.cli.output import byte_progress, note
from skep.cli.plan_output import check_page
from skep.cli.tune import TuneOptions
from skep.cli.tune_tables import TuneStatus, tuning_view
from skep.errors import EngineError, SkepError
from skep.paths import Paths, user_paths
from skep.store.database import open_store
from skep.tuner.bench import carry_out, check_machine, machine_for
from skep.tuner.records import ConfigFailure, value_words
from skep.tuner.running import TuningJournal
from skep.tuner.setup import PreparedTuning, TuningOptions, prepare, prepare_again, prospect_lines, prospects
from skep.tuner.store import TuningRecord, TuningStore
from skep.tuner.summary import accepted, goal_words, one_line, unit_of, unmet_goal
from skep.tuner.tuned_preset import save_best
from skep.units import format_seconds, number

Show = Callable[[TuningRecord], None]


class TuningStopped(SkepError):
    exit_code = 130


def run_tuning(options: TuneOptions, *, html: Path | None, as_json: bool) -> int:
    """Everything that can be wrong is found before anything is started."""
    if html is not None:
        check_page(html)
    paths, wanted = user_paths(os.environ), TuningOptions(**asdict(options))
    check_machine(wanted, paths)
    ready = prepare(wanted, paths)
    _say_what_begins(ready)
    show = partial(tune_stored.print_found, html=html, as_json=as_json)
    begin = partial(TuningJournal.begin, tuning=ready.tuning, clock=time.time)
    return _carry_through(ready, paths, begin, show, in_place=options.in_place)


def _say_what_begins(ready: PreparedTuning) -> None:
    """Say from where it begins, what could be tried, and how long it takes."""
    tuning = ready.tuning
    mark = "SIMULATED: " if tuning.simulated else ""
    note(*ready.notes)
    note(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}; goal {goal_words(tuning.aim)}")
    values = (f"{knob.name} {value_words(tuning.baseline.get(knob.name))}" for knob in tuning.knobs)
    note(f"baseline: {', '.join(values)}")
    foreseen = ready.space.predict(tuning.baseline)
    if foreseen is not None:
        note(f"the planner expects {number(foreseen)} {unit_of(tuning)} of it there")
    found = prospects(ready)
    note(f"{len(found)} changes could come first: time for each, and the gain that the planner foresees")
    note(*(f"  {line}" for line in prospect_lines(found)))
    kind = "of virtual time" if tuning.simulated else "at most"
    note(f"budget: {format_seconds(tuning.budget_s)} {kind}; Ctrl-C stops it and keeps the best so far")


def resume_tuning(name: str, *, in_place: bool, html: Path | None, as_json: bool) -> int:
    if html is not None:
        check_page(html)
    with tune_stored.opened() as tunings:
        found = tunings.find_unfinished(name)
    ready = prepare_again(found.tuning)
    note(f"{found.id}: {found.answers} answers and {found.stages} stages are there already")
    show = partial(tune_stored.print_found, html=html, as_json=as_json)
    begin = partial(TuningJournal.resume, name=found.id, clock=time.time)
    in_place = in_place or ready.options.in_place
    return _carry_through(ready, user_paths(os.environ), begin, show, in_place=in_place)


def _carry_through(
    ready: PreparedTuning, paths: Paths, begin: Callable[[TuningStore], TuningJournal], show: Show, *, in_place: bool
) -> int:
    with machine_for(ready, paths, note, in_place=in_place), open_store(paths.store) as store:
        tunings, search = TuningStore(store), ready.search()
        journal = begin(tunings)
        tuning = journal.tuning
        verb = "goes on" if journal.past else "begins"
        note(f"{tuning.id} {verb}; `skep tune show {tuning.id}` has the ladder as it grows")
        status = TuneStatus(tuning, sum(answer.seconds for _, answer in journal.past), [*journal.stages])
        try:
            with tuning_view(status) as on_event, byte_progress("fetching the weights") as progress:
                carried_out = partial(carry_out, say=note, progress=progress, on_event=on_event)
                run_measuring(partial(carried_out, ready, journal, search, store, paths))
        except Interrupted:
            raise _stopped(tunings, tuning.id, paths) from None
        except SkepError as error:
            if "skep tune" not in (error.hint or "") and journal.stages:
                error.hint = "; ".join(filter(None, (error.hint, f"then `skep tune resume {tuning.id}` goes on")))
            raise
    with open_store(paths.store) as store:
        return _ended(TuningStore(store), tuning.id, paths, search.failure, show)


# What is left when it ends


def _ended(tunings: TuningStore, tuning_id: str, paths: Paths, failure: ConfigFailure | None, show: Show) -> int:
    """Print the ladder, the preset, the page. Raise where nothing could be tuned, or the promise is not kept."""
    found, name = _saved(tunings, tuning_id, paths)
    if failure is not None and not found.stages:
        raise _did_not_start(tuning_id, failure)
    show(found)
    if name is not None:
        note(f"the best is the preset {name}: `skep up {name}` serves it")
    elif accepted(found.stages):
        note(f"`skep tune export NAME --tuning {tuning_id}` writes the best as a preset")
    if failure is not None:
        raise EngineError(f"the tuning ended early: {failure}", hint=failure.remedy)
    if (missed := unmet_goal(found.tuning, found.stages, tunings.starts(tuning_id))) is not None:
        raise missed
    return 0


def _saved(tunings: TuningStore, tuning_id: str, paths: Paths) -> tuple[TuningRecord, str | None]:
    """Return the tuning, and the name of its best as a preset."""
    try:
        name = save_best(tunings, tunings.record(tuning_id), paths)
    except SkepError as error:
        note(f"warning: the best was not written as a preset: {error.message}")
        name = None
    return tunings.record(tuning_id), name


def _did_not_start(tuning_id: str, failure: ConfigFailure) -> EngineError:
    message = f"nothing was tuned, the baseline {failure.title}: {replace(failure, remedy=None)}"
    return EngineError(one_line(message, 600), hint=failure.remedy or f"`skep tune show {tuning_id}` has its runs")


def _stopped(tunings: TuningStore, tuning_id: str, paths: Paths) -> TuningStopped:
    found, name = _saved(tunings, tuning_id, paths)
    hint = f"`skep tune resume {tuning_id}` goes on"
    if not found.stages:
        return TuningStopped("stopped before the baseline was measured; nothing was tuned", hint=hint)
    best = f"the best so far is the preset {name}" if name else "no change was shown to be better so far"
    if found.tuning.simulated and accepted(found.stages):
        best = f"`skep tune export NAME --tuning {tuning_id}` writes the best so far"
    stages = f"{len(found.stages)} stage{'s' if len(found.stages) > 1 else ''}"
    return TuningStopped(f"stopped after {stages} and {tune_stored.took_words(found.saved)}; {best}", hint=hint)
