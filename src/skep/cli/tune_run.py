"""What the commands of `skep tune` do: a search with its live view, and stored tunings listed, shown and exported."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from skep.cli.bench_common import Interrupted, run_measuring
from skep.cli.liveview import Line, Page, can_draw, live_view
from skep.cli.options import existing
from skep.cli.output import byte_progress, check_page, note, print_json
from skep.cli.tune import TuneOptions
from skep.errors import EngineError, SkepError
from skep.files import write_whole
from skep.paths import Paths, user_paths
from skep.report.columns import documents, print_records, table_lines
from skep.report.tuning import LISTED, TUNING_COLUMNS, by_concurrency, curve_columns, stage_columns, tuning_page
from skep.store.database import open_store
from skep.tuner.bench import carry_out, check_machine, logs_folder, machine_for
from skep.tuner.ports import BenchProgress, BenchRequest
from skep.tuner.records import ConfigFailure, StageDecision, TuneStage, Tuning, changes_words, value_words
from skep.tuner.running import OnEvent, RequestFinished, RequestStarted, StageDecided, TuneEvent, TuningJournal
from skep.tuner.setup import PreparedTuning, TuningOptions, base_of, prepare, prepare_again, prospect_lines, prospects
from skep.tuner.store import SavedTuning, TuningRecord, TuningState, TuningStore, failure_json, tuning_json
from skep.tuner.summary import (
    KEPT,
    accepted,
    best_of,
    count_decisions,
    dead_end_lines,
    failure_lines,
    figure_words,
    given_up,
    goal_words,
    headline,
    one_line,
    stage_words,
    unit_of,
    unmet_goal,
)
from skep.tuner.tuned_preset import save_best, stage_for, write_preset
from skep.units import Interval, format_seconds, number

BAR = 40
FEWEST_ROWS = 12  # of stages, where the height is not known
STYLES = {
    StageDecision.ACCEPTED: "green",
    StageDecision.BASELINE: "bold",
    StageDecision.FAILED: "red",
    StageDecision.ANSWERS_WORSE: "red",
}


def print_tuning(found: TuningRecord) -> None:
    """Print the ladder, the search as bars, the curve."""
    tuning, stages = found.tuning, found.stages
    mark = "SIMULATED: " if tuning.simulated else ""
    print(f"{mark}{tuning.model} ({tuning.engine}) on {tuning.rig}: {headline(tuning, stages)}")  # noqa: T201
    if found.failure is not None:
        print("\n".join(failure_lines("the baseline", found.failure)))  # noqa: T201
    if stages:
        print_records(stage_columns(tuning, stages), stages)
        print("\n".join([*dead_end_lines(stages), "", *progress_lines(stages, unit_of(tuning))]))  # noqa: T201
    if found.points:
        print()  # noqa: T201
        print_records(curve_columns(tuning, stages, found.points), by_concurrency(tuning, found.points))


def progress_lines(stages: Sequence[TuneStage], unit: str) -> list[str]:
    """Draw a bar for each configuration that was the best of its time."""
    kept = [(stage, stage.figure) for stage in stages if stage.decision in KEPT and stage.figure is not None]
    most, lost = max((figure.high for _, figure in kept), default=0.0), given_up(stages)
    lines: list[str] = []
    for stage, figure in kept:
        died = " (died later)" if stage.number in lost else ""
        words = f"{figure_words(figure)} {unit}  {stage.title}{died}"
        lines.append(f"{stage.number:>5}  {_bar(figure, most)}  {words}")
    return lines


def _bar(figure: Interval, most: float) -> str:
    """Solid up to the interval's lower end, then light to its upper end."""
    low, high = round(BAR * max(0.0, figure.low) / most), round(BAR * figure.high / most)
    full = max(1, low)
    return ("█" * full + "░" * max(0, high - full)).ljust(BAR)


@dataclass(slots=True)
class TuneStatus:
    """All that is known of a search at this moment."""

    tuning: Tuning
    spent_s: float = 0.0  # of the budget, requests that ended
    stages: list[TuneStage] = field(default_factory=list)
    request: BenchRequest | None = None
    progress: BenchProgress | None = None

    def take(self, event: TuneEvent) -> None:
        match event:
            case RequestStarted():
                self.request, self.progress = event.request, None
            case BenchProgress():
                self.progress = event
            case RequestFinished():
                self.request, self.progress = None, None
                self.spent_s += event.answer.seconds
            case StageDecided():
                self.stages.append(event.stage)


def status_lines(status: TuneStatus, page: Page, running_s: float) -> list[Line]:
    """Return the page of a search. `running_s`: since the request under way began."""
    tuning, best = status.tuning, best_of(status.stages)
    figure = None if best is None else best.figure
    spent_s = status.spent_s + running_s
    left = format_seconds(max(0.0, tuning.budget_s - spent_s))
    title = f"{tuning.id}  {tuning.model} on {tuning.rig}{'  SIMULATED' if tuning.simulated else ''}"
    lines: list[Line] = [
        [(title, "bold")],
        [("best    ", "bold"), ("nothing yet" if figure is None else f"{figure_words(figure)} {unit_of(tuning)}", "")],
        [("time    ", "bold"), (f"{format_seconds(spent_s)} of {format_seconds(tuning.budget_s)}, {left} left", "")],
        [("now     ", "bold"), (now_words(status), "")],
        [],
    ]
    room = FEWEST_ROWS if page.height is None else max(1, page.height - len(lines) - 3)
    shown, hidden = status.stages[-room:], len(status.stages) - room
    if hidden > 0:
        lines.append([(f"{hidden} earlier stages", "dim")])
    if shown:
        columns = stage_columns(tuning, status.stages)
        cells = [[column.cell(stage) for column in columns] for stage in shown]
        right, ranks = [column.right for column in columns], [column.rank or 1 for column in columns]
        ranks[:4] = [0] * 4
        head, *rows = table_lines([column.title for column in columns], cells, right, ranks, page.width - 1)
        styles = [STYLES.get(stage.decision, "") for stage in shown]
        lines += [[(head, "bold")], *([(row, style)] for row, style in zip(rows, styles, strict=False))]
    return lines


def now_words(status: TuneStatus) -> str:
    if status.request is None:
        return "thinking"
    progress = status.progress
    if progress is None:
        return status.request.words
    of = f" {progress.reading}/{progress.readings}" if progress.reading else ""
    speed = f", {number(progress.tok_s)} tok/s" if progress.tok_s is not None else ""
    return f"{status.request.words}: {progress.what}{of}{speed}"


@contextlib.contextmanager
def tuning_view(status: TuneStatus) -> Iterator[OnEvent]:
    """Of a simulated search stages only: requests take no time. A terminal that went away is no reason to stop."""
    began, brief = [time.monotonic()], status.tuning.simulated
    lines = not can_draw(sys.stderr)

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads on: the work is worth more than the story of it
            note(one_line(text, 600))

    def on_event(event: TuneEvent) -> None:
        status.take(event)
        if isinstance(event, RequestStarted):
            began[0] = time.monotonic()
            if lines and not brief:
                say(f"{event.request.words} ...")
        elif isinstance(event, StageDecided) and lines:
            say(stage_words(event.stage, unit_of(status.tuning)))

    if lines:
        yield on_event
        return
    with live_view(lambda page: status_lines(status, page, 0.0 if brief else time.monotonic() - began[0])):
        yield on_event


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
    show = partial(print_found, html=html, as_json=as_json)
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
    with opened() as tunings:
        found = tunings.find_unfinished(name)
    ready = prepare_again(found.tuning)
    note(f"{found.id}: {found.answers} answers and {found.stages} stages are there already")
    show = partial(print_found, html=html, as_json=as_json)
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
    return TuningStopped(f"stopped after {stages} and {took_words(found.saved)}; {best}", hint=hint)


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
