"""`skep tune` and `skep tune resume`: a climb carried out before somebody's eyes, and what is left when it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skep.cli.bench_common import Interrupted, run_measuring
from skep.cli.output import note, print_json
from skep.cli.swarm_words import one_line
from skep.cli.tune_bench import bench_for, check_bank, machine_for
from skep.cli.tune_ground import Wishes
from skep.cli.tune_kept import Kept, check_page, document, kept, logs_folder, opened, print_all, took_words, write_page
from skep.cli.tune_preset import free_name, stage_for, write_preset, written_before
from skep.cli.tune_view import Standing, Watch, live_view
from skep.cli.tune_words import unmet
from skep.cli.tuning import Ready, prepare, prepare_again, tell
from skep.errors import EngineError, SkepError, UserError
from skep.places import Paths, user_paths
from skep.report.tuning_words import accepted
from skep.store.database import Store, open_store
from skep.store.tunings import KeptTuning, TuningState, TuningStore
from skep.tryout import tuner_lock
from skep.tuner.documents import asked_and_answered
from skep.tuner.journal import Journal
from skep.tuner.ports import BenchProgress
from skep.tuner.running import Answered, Asked, Decided, Event, climb_on, resumed
from skep.tuner.search import Climb
from skep.tunings import FAILURES, Failure, Round, Sitting


class Stopped(SkepError):
    exit_code = 130


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to come of it beside the preset."""

    html: Path | None
    as_json: bool


def run_tuning(wishes: Wishes, *, html: Path | None, as_json: bool) -> int:
    """Everything that can be wrong is found before anything is started."""
    if html is not None:
        check_page(html)
    paths = user_paths(os.environ)
    if not wishes.simulate:
        _check_alone(paths)
    check_bank(wishes, paths)
    ready = prepare(wishes)
    tell(ready)
    return _climbed(ready, paths, lambda tunings: Journal.begin(tunings, ready.tuning, time.time), wishes.in_place,
                    Wanted(html, as_json))  # fmt: skip


def _check_alone(paths: Paths) -> None:
    """Before anything is looked at: even measuring the memory's speed would disturb a tuner that is at work."""
    with tuner_lock(paths):
        pass


def resume_tuning(name: str, *, in_place: bool, html: Path | None, as_json: bool) -> int:
    if html is not None:
        check_page(html)
    with opened() as tunings:
        found = _to_resume(tunings, name)
    ready, paths = prepare_again(found.tuning), user_paths(os.environ)
    note(f"{found.id}: {found.answers} answers and {found.stages} stages are there already")
    place = in_place or ready.wishes.in_place
    return _climbed(ready, paths, lambda tunings: Journal.resume(tunings, found.id, time.time), place,
                    Wanted(html, as_json))  # fmt: skip


def _to_resume(tunings: TuningStore, name: str) -> KeptTuning:
    """`last`: the newest that is not finished, where there is one."""
    unfinished = (row for row in tunings.tunings() if row.state is TuningState.INTERRUPTED)
    found = (next(unfinished, None) if name == "last" else None) or tunings.find(name)
    if found.state is TuningState.ENDED:
        hint = f"`skep tune show {found.id}` shows it, `skep tune {found.tuning.model}` begins another"
        raise UserError(f"tuning `{found.id}` has ended, there is nothing left to do", hint=hint)
    if found.state is TuningState.RUNNING:
        hint = f"`skep tune show {found.id}` shows how it stands; Ctrl-C in its terminal stops it"
        raise UserError(f"a process is at work on tuning `{found.id}`", hint=hint)
    return found


def _climbed(
    ready: Ready, paths: Paths, begin: Callable[[TuningStore], Journal], in_place: bool, wanted: Wanted
) -> int:
    with machine_for(ready, paths, in_place=in_place), open_store(paths.store) as store:
        journal, climb = begin(TuningStore(store)), ready.climb()
        tuning = journal.tuning
        verb = "goes on" if journal.past else "begins"
        note(f"{tuning.id} {verb}; `skep tune show {tuning.id}` has the ladder as it grows")
        title = f"{tuning.id}  {tuning.model} on {tuning.rig}{'  SIMULATED' if tuning.simulated else ''}"
        standing = Standing(title, tuning.aim, tuning.budget_s, stages=[*journal.stages])
        try:
            with live_view(standing, brief=tuning.simulated) as watch:
                run_measuring(lambda: _carry_out(ready, journal, climb, store, paths, watch))
        except Interrupted:
            raise _stopped(tuning.id) from None
        except SkepError as error:
            if "skep tune" not in (error.hint or "") and journal.stages:
                error.hint = "; ".join(filter(None, (error.hint, f"then `skep tune resume {tuning.id}` goes on")))
            raise
        finally:
            _tidy(paths, tuning.id)
    return _ended(tuning.id, climb.failure, wanted)


async def _carry_out(ready: Ready, journal: Journal, climb: Climb, store: Store, paths: Paths, watch: Watch) -> None:
    """What an earlier session measured is given to the climb first."""

    def told(event: Event) -> None:
        match event:
            case Asked():
                watch.began(event.errand)
            case BenchProgress():
                watch.progress(event)
            case Answered():
                watch.ended(climb.spent_s)
            case Decided():
                watch.decided(event.stage)

    with journal:
        spent_s = resumed(journal, climb)
        watch.ended(spent_s)
        bench = bench_for(ready, journal.tuning, store, paths, spent_s=spent_s, rounds=len(journal.past))
        async with bench as opened_bench:
            await climb_on(climb, opened_bench, journal, on_event=told)


def _tidy(paths: Paths, tuning_id: str) -> None:
    """The folder in which engines were started; logs of those that failed stay there."""
    folder = logs_folder(paths, tuning_id)
    for place in (folder, folder.parent):
        with contextlib.suppress(OSError):
            place.rmdir()


# What is left when it ends


def _ended(tuning_id: str, failure: Failure | None, wanted: Wanted) -> int:
    """The ladder, the preset, the page; exit code 1 where nothing could be tuned, or the promise is not kept."""
    if failure is not None and not kept(tuning_id).stages:
        raise _did_not_start(tuning_id, failure)
    name = _save_best(tuning_id)
    found = kept(tuning_id)
    if wanted.as_json:
        print_json(document(found))
    else:
        print_all(found)
    if wanted.html is not None:
        write_page(found, wanted.html)
    _say_next(found, name)
    if failure is not None:
        raise EngineError(f"the climb ended early: {failure}", hint=failure.remedy)
    if (missed := unmet(found.tuning, found.stages, _sittings(tuning_id))) is not None:
        raise missed
    return 0


def _did_not_start(tuning_id: str, failure: Failure) -> EngineError:
    what = FAILURES.get(failure.kind, failure.kind)
    said = f" ({failure.evidence})" if failure.evidence and failure.evidence not in failure.cause else ""
    message = f"nothing was tuned, the baseline {what}: {failure.cause}{said}"
    return EngineError(one_line(message, 600), hint=failure.remedy or f"`skep tune show {tuning_id}` has its runs")


def _save_best(tuning_id: str) -> str | None:
    """As a preset, where something was better than the beginning; of a simulated climb nothing is written unasked."""
    found = kept(tuning_id)
    if found.tuning.simulated or not accepted(found.stages):
        return None
    if (known := written_before(found.tuning, found.stages, found.row.presets)) is not None:
        return known
    name = free_name(found.tuning)
    try:
        write_preset(found.tuning, found.stages, name)
    except SkepError as error:
        note(f"warning: the best was not written as a preset: {error.message}")
        return None
    with opened(read_only=False) as tunings:
        best = stage_for(found.tuning, found.stages, None)
        tunings.append_preset(tuning_id, name, time.time(), stage=best.number)
    return name


def _say_next(found: Kept, name: str | None) -> None:
    if name is not None:
        note(f"the best is the preset {name}: `skep up {name}` serves it")
    elif accepted(found.stages):
        note(f"`skep tune export NAME --tuning {found.row.id}` writes the best as a preset")


def _stopped(tuning_id: str) -> Stopped:
    name = _save_best(tuning_id)
    found = kept(tuning_id)
    hint = f"`skep tune resume {tuning_id}` goes on"
    if not found.stages:
        return Stopped("stopped before the baseline was measured; nothing was tuned", hint=hint)
    best = f"the best so far is the preset {name}" if name else "no change was shown to be better so far"
    if found.tuning.simulated and accepted(found.stages):
        best = f"`skep tune export NAME --tuning {tuning_id}` writes the best so far"
    stages = f"{len(found.stages)} stage{'s' if len(found.stages) > 1 else ''}"
    return Stopped(f"stopped after {stages} and {took_words(found.row)}; {best}", hint=hint)


def _sittings(tuning_id: str) -> list[Sitting]:
    with opened() as tunings:
        answers = [asked_and_answered(one)[1] for one in tunings.answers(tuning_id, "round")]
    return [sitting for answer in answers if isinstance(answer, Round) for sitting in answer.sittings]
