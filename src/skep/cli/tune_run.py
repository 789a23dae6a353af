"""What the commands of `skep tune` do: a search with its live view, and stored tunings listed,
shown and exported.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial

from msgspec.structs import replace

from skep.cli.options import Interrupted, existing, run_measuring
from skep.cli.tune import TuneOptions
from skep.errors import EngineError, SkepError
from skep.files import OutputFile
from skep.paths import Paths, user_paths
from skep.report.columns import document_of, print_records
from skep.report.liveview import can_draw, live_view
from skep.report.terminal import byte_progress, note, print_json, print_list
from skep.report.tuning import (
    TUNING_COLUMNS,
    TuneStatus,
    document,
    print_tuning,
    say_how_far_off,
    say_state,
    say_what_begins,
    status_lines,
    took_words,
    tuning_page,
)
from skep.store.database import open_store, read_store
from skep.tuner.presets import save_best, write_preset
from skep.tuner.records import BenchRequest, ConfigFailure, TuneEvent, TuneStage, changes_words
from skep.tuner.running import (
    OnEvent,
    TuningJournal,
    carry_out,
    logs_folder,
    machine_for,
    power_put_back,
)
from skep.tuner.setup import PreparedTuning, TuningOptions, prepare, prepare_again
from skep.tuner.store import TuningRecord, TuningState, TuningStore, base_of
from skep.tuner.summary import accepted, best_of, missed_slo, stage_words, unit_of
from skep.tuner.trial_server import tuner_lock
from skep.units import one_line


@contextmanager
def tuning_view(status: TuneStatus) -> Iterator[OnEvent]:
    """Yield what shows the events of a search; of a simulated one only the stages, as requests
    take no time. A terminal that went away is no reason to stop.
    """
    began = time.monotonic()
    is_simulated = status.tuning.simulated
    prints_lines = not can_draw(sys.stderr)

    def on_event(event: TuneEvent) -> None:
        nonlocal began
        status.take(event)
        line = None
        if isinstance(event, BenchRequest):
            began = time.monotonic()
            line = None if is_simulated else f"{event.words} ..."
        elif isinstance(event, TuneStage):
            line = stage_words(event, unit_of(status.tuning))
        if prints_lines and line is not None:
            with suppress(OSError):  # nobody reads on: the work is worth more than the story of it
                note(one_line(line, 600))

    if prints_lines:
        yield on_event
        return
    with live_view(
        lambda page: status_lines(status, page, 0.0 if is_simulated else time.monotonic() - began)
    ):
        yield on_event


def run_tuning(options: TuneOptions, *, as_json: bool) -> int:
    """Everything that can be wrong is found before anything is started."""
    paths = user_paths(os.environ)
    tuning_options = TuningOptions(**asdict(options))
    # Before its memory and cards are looked at.
    with nullcontext() if options.simulate else _locked(paths):
        ready = prepare(tuning_options, paths)
    say_what_begins(ready)
    return _carry_through(ready, paths, in_place=options.in_place, as_json=as_json)


@contextmanager
def _locked(paths: Paths) -> Iterator[None]:
    """Hold the lock, with the cards' power as it was before a tuning that was killed."""
    with tuner_lock(paths), power_put_back(paths, note):
        yield


def resume_tuning(name: str, *, in_place: bool, as_json: bool) -> int:
    with opened() as tunings:
        unfinished = tunings.find_unfinished(name)
        stages = len(tunings.stages(unfinished.id))
    ready = prepare_again(unfinished.tuning)
    note(f"{unfinished.id}: {unfinished.answers} answers and {stages} steps are already stored")
    in_place = in_place or ready.options.in_place
    return _carry_through(ready, user_paths(os.environ), in_place=in_place, as_json=as_json)


def _carry_through(ready: PreparedTuning, paths: Paths, *, in_place: bool, as_json: bool) -> int:
    """A tuning without an id is begun, one that has its id goes on."""
    with machine_for(ready, paths, note, in_place=in_place), open_store(paths.store) as store:
        tunings = TuningStore(store)
        search = ready.search()
        journal = TuningJournal(tunings, ready.tuning.id or tunings.begin(ready.tuning), time.time)
        tuning = journal.tuning
        verb = "continues" if journal.past else "starts"
        note(f"{tuning.id} {verb}; `skep tune show {tuning.id}` shows its steps so far")
        status = TuneStatus(
            tuning, sum(answer.seconds for _, answer in journal.past), [*journal.stages]
        )
        try:
            with (
                tuning_view(status) as on_event,
                byte_progress("downloading the weights") as progress,
            ):
                carried_out = partial(carry_out, progress=progress, on_event=on_event)
                run_measuring(partial(carried_out, ready, journal, search, store, paths))
        except Interrupted:
            raise _stopped(tunings, tuning.id, paths) from None
        except SkepError as error:
            if "skep tune" not in (error.hint or "") and journal.stages:
                error.hint = "; ".join(
                    filter(None, (error.hint, f"then `skep tune resume {tuning.id}` continues it"))
                )
            raise
    with open_store(paths.store) as store:
        say_how_far_off(ready, TuningStore(store).record(tuning.id))
        return _ended(TuningStore(store), tuning.id, paths, search.failure, as_json=as_json)


# What is left when it ends


def _ended(
    tunings: TuningStore,
    tuning_id: str,
    paths: Paths,
    failure: ConfigFailure | None,
    *,
    as_json: bool,
) -> int:
    """Print the ladder and the preset. Raise where nothing could be tuned, or the promise is not
    kept.
    """
    tuning, name = _saved(tunings, tuning_id, paths)
    if failure is not None and best_of(tuning.stages) is None:
        message = (
            f"nothing was tuned, the baseline {failure.title}: {replace(failure, remedy=None)}"
        )
        hint = failure.remedy or f"try `--from safe`; `skep tune show {tuning_id}` has its runs"
        raise EngineError(one_line(message, 600), hint=hint)
    print_found(tuning, as_json=as_json)
    if name is not None:
        note(f"the best configuration is the preset {name}: `skep up {name}` serves it")
    elif accepted(tuning.stages):
        note(f"`skep tune export NAME --tuning {tuning_id}` writes the best as a preset")
    if failure is not None:
        raise EngineError(f"the tuning ended early: {failure}", hint=failure.remedy)
    if (missed := missed_slo(tuning.tuning, tuning.stages)) is not None:
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


def _stopped(tunings: TuningStore, tuning_id: str, paths: Paths) -> Interrupted:
    tuning, name = _saved(tunings, tuning_id, paths)
    best = f"; the best so far is the preset {name}" if name else ""
    stages = f"{len(tuning.stages)} step{'s' if len(tuning.stages) != 1 else ''}"
    hint = f"`skep tune resume {tuning_id}` continues it"
    return Interrupted(f"stopped after {stages} and {took_words(tuning)}{best}", hint=hint)


NONE_YET = "there are no tunings yet"
MAKES_ONE = "`skep tune MODEL` makes one"


@contextmanager
def opened(*, read_only: bool = True) -> Iterator[TuningStore]:
    with existing(NONE_YET, MAKES_ONE, read_only=read_only) as store:
        yield TuningStore(store)


def show_tuning(name: str, *, html: OutputFile | None, as_json: bool) -> None:
    with opened() as tunings:
        tuning = tunings.record(name)
    if html is not None:
        html.checked(tuning.id)
    print_found(tuning, as_json=as_json)
    if html is not None:
        html.write(tuning_page(tuning.tuning, tuning.stages, state=tuning.unfinished), tuning.id)
        note(f"{tuning.id} written to {html}")
    if not as_json:
        _say_next(tuning)


def print_found(tuning: TuningRecord, *, as_json: bool) -> None:
    """Print the document, or the tables and what is to be said of them."""
    if as_json:
        print_json(document(tuning))
    else:
        print_tuning(tuning)
        say_state(tuning)


def _say_next(tuning: TuningRecord) -> None:
    if tuning.state is TuningState.INTERRUPTED:
        why = f" ({tuning.reason})" if tuning.reason else ""
        note(f"it was interrupted{why}; `skep tune resume {tuning.id}` continues it")
    logs = logs_folder(user_paths(os.environ), tuning.id)
    if tuning.state is not TuningState.RUNNING and logs.is_dir():
        note(f"logs of failures are in {logs}")
    if best_of(tuning.stages) is not None:
        if tuning.presets:
            exported = f"; made of it already: {', '.join(tuning.presets)}"
        else:
            exported = ""
        note(f"`skep tune export NAME --tuning {tuning.id}` writes the best as a preset{exported}")


def export_tuning(name: str, tuning: str, *, overwrite: bool) -> None:
    with opened(read_only=False) as tunings:
        record = tunings.record(tuning)
        path, best = write_preset(record, name, user_paths(os.environ), overwrite=overwrite)
        tunings.append_preset(record.id, name, time.time(), stage=best.number)
    print(path)  # noqa: T201
    note(
        f"step {best.number} of {record.id}, against its baseline: "
        f"{changes_words(best.config, record.tuning.baseline)}"
    )
    stand_in = base_of(record.tuning).stand_in
    if stand_in:
        before = f"write the weights' name into its `checkpoint` ({path}), then "
    else:
        before = ""
    note(f"{before}`skep up {name}` serves it")


def print_tunings(limit: int, *, as_json: bool) -> None:
    with read_store(user_paths(os.environ).store) as store:
        tunings = TuningStore(store).records(limit)
    table = partial(print_records, [column for column in TUNING_COLUMNS if column.title])
    as_told = partial(document_of, TUNING_COLUMNS)
    print_list(tunings, table, as_told, as_json=as_json, none_yet=f"{NONE_YET}; {MAKES_ONE}")


def remove_tuning(name: str) -> None:
    with opened(read_only=False) as tunings:
        record = tunings.find(name)
        tunings.delete([record.id])
    shutil.rmtree(logs_folder(user_paths(os.environ), record.id), ignore_errors=True)
    if record.presets:
        stay = f"; its presets stay: {', '.join(record.presets)}"
    else:
        stay = ""
    note(f"tuning {record.id} of {record.tuning.model} is deleted{stay}")
