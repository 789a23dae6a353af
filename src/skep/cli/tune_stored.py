"""Tunings as the store has them: listed, shown, exported, deleted."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skep.cli.options import existing
from skep.cli.output import note, print_json, write_whole
from skep.cli.plan_output import check_page
from skep.cli.tune_tables import print_tuning
from skep.paths import user_paths
from skep.report.columns import documents, print_records
from skep.report.tuning import LISTED, TUNING_COLUMNS, tuning_page
from skep.tuner.bench import logs_folder
from skep.tuner.documents import failure_json, tuning_json
from skep.tuner.records import changes_words
from skep.tuner.setup import base_of
from skep.tuner.store import SavedTuning, TuningRecord, TuningState, TuningStore
from skep.tuner.summary import KEPT, best_of, count_decisions, given_up, goal_words, one_line
from skep.tuner.tuned_preset import stage_for, write_preset
from skep.units import format_seconds

NONE_YET, MAKES_ONE = "there are no tunings yet", "`skep tune MODEL` makes one"


@contextmanager
def opened(*, read_only: bool = True) -> Iterator[TuningStore]:
    with existing(NONE_YET, MAKES_ONE, read_only=read_only) as store:
        yield TuningStore(store)


def show_tuning(name: str, *, html: Path | None, as_json: bool) -> None:
    if html is not None:
        check_page(html)
    with opened() as tunings:
        found = tunings.record(name)
    print_found(found, html, as_json=as_json)
    if not as_json:
        _say_next(found)


def print_found(found: TuningRecord, html: Path | None, *, as_json: bool) -> None:
    """Print the document, or the tables and what is to be said of them; write the page."""
    if as_json:
        print_json(document(found))
    else:
        print_tuning(found)
        _say_state(found)
    if html is not None:
        write_whole(html, tuning_page(found.tuning, found.stages, found.points, state=found.saved.unfinished))
        note(f"{found.saved.id} written to {html}")


def document(found: TuningRecord) -> dict[str, Any]:
    failure = None if found.failure is None else failure_json(found.failure)
    more = {"failure": failure, "reason": found.saved.reason, "presets": list(found.saved.presets)}
    return {**tuning_json(found), **more}


def _say_state(found: TuningRecord) -> None:
    saved, tuning = found.saved, found.tuning
    over = saved.state is TuningState.ENDED
    tried = count_decisions(found.stages) or f"no change was {'tried' if over else 'decided yet'}"
    why = f", {saved.reason}" if over and saved.reason else ""
    note(f"{tuning.id} ({saved.state.value}{why}): goal {goal_words(tuning.aim)}; {tried}; {took_words(saved)}")
    if tuning.simulated:
        note("SIMULATED: no model ran; figures and seconds are the planner's with noise, not measurements")


def took_words(saved: SavedTuning) -> str:
    """Of all its sessions, without what lay between them."""
    if not saved.answers:
        return "nothing is measured yet"
    return f"{format_seconds(saved.measured_s)} of {'virtual time' if saved.tuning.simulated else 'measuring'}"


def _say_next(found: TuningRecord) -> None:
    saved = found.saved
    so_far = "" if saved.state is TuningState.ENDED else " so far"
    if saved.state is TuningState.RUNNING:
        note(f"a process is at work on it; {format_seconds(found.tuning.budget_s)} is its budget")
    if saved.state is TuningState.INTERRUPTED:
        why = f" ({saved.reason})" if saved.reason else ""
        note(f"it was interrupted{why}; `skep tune resume {saved.id}` goes on with it")
    logs = logs_folder(user_paths(os.environ), saved.id)
    if saved.state is not TuningState.RUNNING and logs.is_dir():
        note(f"logs of what failed are in {logs}")
    if best_of(found.stages) is not None:
        made = f"; made of it already: {', '.join(saved.presets)}" if saved.presets else ""
        note(f"`skep tune export NAME --tuning {saved.id}` writes the best{so_far} as a preset{made}")


def export_tuning(name: str, tuning: str, *, stage: int | None, overwrite: bool) -> None:
    with opened(read_only=False) as tunings:
        found = tunings.record(tuning)
        paths = user_paths(os.environ)
        path = write_preset(found.tuning, found.stages, name, paths, stage=stage, overwrite=overwrite)
        wanted = stage_for(found.tuning, found.stages, stage)
        tunings.append_preset(found.saved.id, name, time.time(), stage=wanted.number)
    print(path)  # noqa: T201
    changed = changes_words(wanted.config, found.stages[0].config)
    note(f"stage {wanted.number} of {found.saved.id}, against its baseline: {changed}")
    died = wanted.number in given_up(found.stages)
    if wanted.decision not in KEPT or died:
        verdict = wanted.decision.value + (", died later" if died else "")
        note(f"warning: it was not kept: {verdict}, {one_line(wanted.why, 300)}")
    stand_in = base_of(found.tuning).stand_in
    before = f"write the weights' name into its `checkpoint` ({path}), then " if stand_in else ""
    note(f"{before}`skep up {name}` serves it")


def print_tunings(limit: int, *, as_json: bool) -> None:
    found: list[TuningRecord] = []
    if user_paths(os.environ).store.exists():
        with opened() as tunings:
            found = tunings.records(limit)
    if as_json:
        print_json(documents(LISTED, found))
    elif found:
        print_records([one for one in TUNING_COLUMNS if one.title], found)
    else:
        note(f"{NONE_YET}; {MAKES_ONE}")


def remove_tuning(name: str) -> None:
    with opened(read_only=False) as tunings:
        found = tunings.find(name)
        tunings.delete([found.id])
    shutil.rmtree(logs_folder(user_paths(os.environ), found.id), ignore_errors=True)
    stay = f"; its presets stay: {', '.join(found.presets)}" if found.presets else ""
    note(f"tuning {found.id} of {found.tuning.model} is deleted{stay}")
