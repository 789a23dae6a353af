"""`skep tune` and `skep tune resume`: a search carried out before somebody's eyes, and what is left when it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path

from skep.cli import tune_stored
from skep.cli.bench_common import Interrupted, run_measuring
from skep.cli.output import byte_progress, note, print_json
from skep.cli.plan_output import check_page
from skep.cli.swarm_tables import one_line
from skep.cli.tune import TuneOptions
from skep.cli.tune_setup import PreparedTuning, prepare, prepare_again, tell
from skep.cli.tune_tables import TuneStatus, figure_words, tuning_view
from skep.errors import EngineError, SkepError, UserError
from skep.host.facts import read_host
from skep.host.power import open_meter
from skep.paths import Paths, user_paths
from skep.store.database import Store, open_store
from skep.tuner.documents import asked_and_answered
from skep.tuner.journal import TuningJournal
from skep.tuner.knobs import apply_config
from skep.tuner.measure import BenchContext, EngineBench
from skep.tuner.measurements import over_limit
from skep.tuner.ports import Bench
from skep.tuner.quality_check import AUTO, ITEMS, MOST_S, GuardPlan, QualityGuard, guard_bank, open_guard
from skep.tuner.records import FAILURES, ConfigFailure, KnobConfig, MeasurementRound, ServerStart, TuneStage, Tuning
from skep.tuner.running import OnEvent, replay_answers, run_search
from skep.tuner.search import KnobSearch
from skep.tuner.service_pause import running_service, service_paused
from skep.tuner.simulated import PlannedTruth, SimulatedBench
from skep.tuner.store import SavedTuning, TuningState, TuningStore, check_free
from skep.tuner.summary import accepted, best_of, unit_of
from skep.tuner.trial_server import TrialServers, tuner_lock

NO_BANK = "off"
GUARD_SHARE = 0.1  # of the budget, for the answers of one configuration


@contextmanager
def machine_for(ready: PreparedTuning, paths: Paths, *, in_place: bool) -> Iterator[None]:
    """Held for one tuner; what `skep up` serves is paused meanwhile, or left alone where both can be."""
    if ready.tuning.simulated:
        yield
        return
    with tuner_lock(paths):
        if not in_place:
            _check_service(ready, paths)
        with service_paused(paths) if in_place else nullcontext() as service:
            if service is not None:
                note(f"set aside until this ends: {service}")
            try:
                yield
            finally:
                if service is not None:
                    note(f"{', '.join(service.models)} is started again at {service.url}")


def _check_service(ready: PreparedTuning, paths: Paths) -> None:
    """Where both would have the same cards there is no room; elsewhere they only disturb each other."""
    service = running_service(paths)
    if service is None:
        return
    shared = service.shares(ready.base.gpus)
    if ready.space.ground.on_cpu or not shared:
        note(f"warning: {service}; what it is asked meanwhile slows down what is measured here")
        return
    hint = "--in-place stops it meanwhile and puts it back on any exit; --gpus takes others; or `skep down` first"
    raise EngineError(f"GPU {', '.join(map(str, shared))} is in use: {service}", hint=hint)


def check_bank(options: TuneOptions, paths: Paths) -> None:
    """A bank that cannot be had is told before anything is started."""
    if options.quality not in (NO_BANK, AUTO) and not options.simulate:
        guard_bank(options.quality, GuardPlan(1, items=options.quality_items or ITEMS), paths.cache)


@asynccontextmanager
async def bench_for(
    ready: PreparedTuning, tuning: Tuning, store: Store, paths: Paths, *, spent_s: float, rounds: int
) -> AsyncIterator[Bench]:
    """`spent_s` and `rounds`: of what was measured before it was taken up again."""
    if tuning.simulated:
        yield SimulatedBench(PlannedTruth(ready.space), seed=tuning.seed, together=False, began_s=spent_s)
        return
    host = read_host()
    async with AsyncExitStack() as stack:
        guard = await _guard(stack, ready, tuning, store, paths)
        meter = open_meter()
        if meter is not None:
            stack.callback(meter.close)
        work = paths.state / "tunings" / tuning.id
        work.mkdir(parents=True, exist_ok=True)
        progress = stack.enter_context(byte_progress("fetching the weights"))
        house = TrialServers(paths, work, binary=ready.options.binary, progress=progress)
        base = ready.base
        tuned = BenchContext(
            tuning.id, tuning.aim, tuning.seed, lambda config: apply_config(base, config), first_round=rounds
        )
        yield EngineBench(house, tuned, store, host, guard=guard, meter=meter)


async def _guard(
    stack: AsyncExitStack, ready: PreparedTuning, tuning: Tuning, store: Store, paths: Paths
) -> QualityGuard | None:
    options = ready.options
    if options.quality == NO_BANK:
        return None
    items = options.quality_items or ITEMS
    most_s = min(MOST_S, GUARD_SHARE * tuning.budget_s)
    plan = GuardPlan(tuning.aim.concurrency, items=items, seed=tuning.seed, tuning=tuning.id, most_s=most_s)
    try:
        bank = guard_bank(options.quality, plan, paths.cache)
        return await stack.enter_async_context(open_guard(bank, plan, store, read_host()))
    except UserError as error:
        if options.quality != AUTO:
            raise
        note(f"warning: answers are not guarded: {error.message}")
        return None


def unmet(tuning: Tuning, stages: Sequence[TuneStage], starts: Sequence[ServerStart]) -> SkepError | None:
    """An SLO that nothing kept, or a target that nothing reached. None: all is well, or there is no figure at all."""
    best = best_of(stages)
    if best is None or best.figure is None:
        return None
    return _late(tuning, best, starts) or _short(tuning, best)


def _late(tuning: Tuning, best: TuneStage, starts: Sequence[ServerStart]) -> SkepError | None:
    if tuning.aim.slo is None:
        return None
    by_config: dict[KnobConfig, list[ServerStart]] = {}
    for start in starts:
        if start.figures:
            by_config.setdefault(start.config, []).append(start)
    shares = {config: over_limit(seen) for config, seen in by_config.items()}
    if not shares or shares.get(best.config, 0.0) <= 1:
        return None
    closest = min(shares, key=lambda config: shares[config])
    words = ", ".join(map(str, closest.changes_from(tuning.baseline))) or "the baseline"
    if shares[closest] <= 1:
        what = f"the best is over {tuning.aim.slo} ({shares[best.config]:.2f} times it)"
        return SkepError(f"{what}; within it was only {words}, in a first look", hint="a longer --budget may decide it")
    what = f"no configuration kept {tuning.aim.slo} at C={tuning.aim.concurrency}"
    hint = "a wider --slo, or fewer agents; the nearest to it and fastest is kept all the same"
    return SkepError(f"{what}; closest came {words} with {shares[closest]:.2f} times the limit", hint=hint)


def _short(tuning: Tuning, best: TuneStage) -> SkepError | None:
    target, figure = tuning.aim.target, best.figure
    if target is None or figure is None or figure.estimate >= target:
        return None
    unit = unit_of(tuning)
    what = f"no configuration reached {target:g} {unit}; closest came {figure_words(figure)} {unit}"
    return SkepError(what, hint="a longer --budget, more --knobs or another --checkpoint may; the best is kept")


class TuningStopped(SkepError):
    exit_code = 130


def run_tuning(options: TuneOptions, *, html: Path | None, as_json: bool) -> int:
    """Everything that can be wrong is found before anything is started."""
    if html is not None:
        check_page(html)
    paths = user_paths(os.environ)
    if not options.simulate:
        _check_alone(paths)
    check_bank(options, paths)
    ready = prepare(options)
    tell(ready)
    return _carry_through(
        ready,
        paths,
        lambda tunings: TuningJournal.begin(tunings, ready.tuning, time.time),
        options.in_place,
        html,
        as_json,
    )


def _check_alone(paths: Paths) -> None:
    """Before anything is looked at: even measuring the memory's speed would disturb a tuner that is at work."""
    with tuner_lock(paths):
        pass


def resume_tuning(name: str, *, in_place: bool, html: Path | None, as_json: bool) -> int:
    if html is not None:
        check_page(html)
    with tune_stored.opened() as tunings:
        found = _to_resume(tunings, name)
    ready, paths = prepare_again(found.tuning), user_paths(os.environ)
    note(f"{found.id}: {found.answers} answers and {found.stages} stages are there already")
    place = in_place or ready.options.in_place
    return _carry_through(ready, paths, lambda tunings: TuningJournal.resume(tunings, found.id, time.time), place,
                    html, as_json)  # fmt: skip


def _to_resume(tunings: TuningStore, name: str) -> SavedTuning:
    """`last`: the newest that is not finished, where there is one."""
    unfinished = (row for row in tunings.tunings() if row.state is TuningState.INTERRUPTED)
    found = (next(unfinished, None) if name == "last" else None) or tunings.find(name)
    check_free(found.id, found.state)
    return found


def _carry_through(
    ready: PreparedTuning,
    paths: Paths,
    begin: Callable[[TuningStore], TuningJournal],
    in_place: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    with machine_for(ready, paths, in_place=in_place), open_store(paths.store) as store:
        journal, search = begin(TuningStore(store)), ready.search()
        tuning = journal.tuning
        verb = "goes on" if journal.past else "begins"
        note(f"{tuning.id} {verb}; `skep tune show {tuning.id}` has the ladder as it grows")
        title = f"{tuning.id}  {tuning.model} on {tuning.rig}{'  SIMULATED' if tuning.simulated else ''}"
        standing = TuneStatus(title, tuning.aim, tuning.budget_s, stages=[*journal.stages])
        try:
            with tuning_view(standing, brief=tuning.simulated) as on_event:
                run_measuring(lambda: _carry_out(ready, journal, search, store, paths, standing, on_event))
        except Interrupted:
            raise _stopped(tuning.id) from None
        except SkepError as error:
            if "skep tune" not in (error.hint or "") and journal.stages:
                error.hint = "; ".join(filter(None, (error.hint, f"then `skep tune resume {tuning.id}` goes on")))
            raise
        finally:
            _tidy(paths, tuning.id)
    return _ended(tuning.id, search.failure, html, as_json=as_json)


async def _carry_out(
    ready: PreparedTuning,
    journal: TuningJournal,
    search: KnobSearch,
    store: Store,
    paths: Paths,
    status: TuneStatus,
    on_event: OnEvent,
) -> None:
    """What an earlier session measured is given to the search first."""
    with journal:
        spent_s = replay_answers(journal, search)
        status.spent_s = spent_s
        bench = bench_for(ready, journal.tuning, store, paths, spent_s=spent_s, rounds=len(journal.past))
        async with bench as opened_bench:
            await run_search(search, opened_bench, journal, on_event=on_event)


def _tidy(paths: Paths, tuning_id: str) -> None:
    """The folder in which engines were started; logs of those that failed stay there."""
    folder = tune_stored.logs_folder(paths, tuning_id)
    for place in (folder, folder.parent):
        with contextlib.suppress(OSError):
            place.rmdir()


# What is left when it ends


def _ended(tuning_id: str, failure: ConfigFailure | None, html: Path | None, *, as_json: bool) -> int:
    """Return the ladder, the preset, the page; exit code 1 where nothing could be tuned, or the promise is not kept."""
    if failure is not None and not tune_stored.read_tuning(tuning_id).stages:
        raise _did_not_start(tuning_id, failure)
    name = _save_best(tuning_id)
    found = tune_stored.read_tuning(tuning_id)
    if as_json:
        print_json(tune_stored.document(found))
    else:
        tune_stored.print_all(found)
    if html is not None:
        tune_stored.write_page(found, html)
    _say_next(found, name)
    if failure is not None:
        raise EngineError(f"the tuning ended early: {failure}", hint=failure.remedy)
    if (missed := unmet(found.tuning, found.stages, _starts(tuning_id))) is not None:
        raise missed
    return 0


def _did_not_start(tuning_id: str, failure: ConfigFailure) -> EngineError:
    what = FAILURES.get(failure.kind, failure.kind)
    said = f" ({failure.evidence})" if failure.evidence and failure.evidence not in failure.cause else ""
    message = f"nothing was tuned, the baseline {what}: {failure.cause}{said}"
    return EngineError(one_line(message, 600), hint=failure.remedy or f"`skep tune show {tuning_id}` has its runs")


def _save_best(tuning_id: str) -> str | None:
    """As a preset, where something was better than the beginning; of a simulated search nothing is written unasked."""
    found = tune_stored.read_tuning(tuning_id)
    if found.tuning.simulated or not accepted(found.stages):
        return None
    if (known := tune_stored.written_before(found.tuning, found.stages, found.row.presets)) is not None:
        return known
    name = tune_stored.free_name(found.tuning)
    try:
        tune_stored.write_preset(found.tuning, found.stages, name)
    except SkepError as error:
        note(f"warning: the best was not written as a preset: {error.message}")
        return None
    with tune_stored.opened(read_only=False) as tunings:
        best = tune_stored.stage_for(found.tuning, found.stages, None)
        tunings.append_preset(tuning_id, name, time.time(), stage=best.number)
    return name


def _say_next(found: tune_stored.TuningRecord, name: str | None) -> None:
    if name is not None:
        note(f"the best is the preset {name}: `skep up {name}` serves it")
    elif accepted(found.stages):
        note(f"`skep tune export NAME --tuning {found.row.id}` writes the best as a preset")


def _stopped(tuning_id: str) -> TuningStopped:
    name = _save_best(tuning_id)
    found = tune_stored.read_tuning(tuning_id)
    hint = f"`skep tune resume {tuning_id}` goes on"
    if not found.stages:
        return TuningStopped("stopped before the baseline was measured; nothing was tuned", hint=hint)
    best = f"the best so far is the preset {name}" if name else "no change was shown to be better so far"
    if found.tuning.simulated and accepted(found.stages):
        best = f"`skep tune export NAME --tuning {tuning_id}` writes the best so far"
    stages = f"{len(found.stages)} stage{'s' if len(found.stages) > 1 else ''}"
    return TuningStopped(f"stopped after {stages} and {tune_stored.took_words(found.row)}; {best}", hint=hint)


def _starts(tuning_id: str) -> list[ServerStart]:
    with tune_stored.opened() as tunings:
        answers = [asked_and_answered(one)[1] for one in tunings.answers(tuning_id, "round")]
    return [start for answer in answers if isinstance(answer, MeasurementRound) for start in answer.starts]
