"""A tuning carried out: its machine, its bench and its journal, and the loop between the search
and the bench.

The search decides; the bench, on this machine's engines or on a rig in virtual time, measures.
Each answer is stored as it comes, with the stages that it decided, so that a process that is
killed leaves what came before. How much time a search may take is the search's own business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from skep.deploy.launches import PullProgress
from skep.errors import EngineError, SkepError, StoreError, UserError, first_of
from skep.host.facts import read_host
from skep.host.power import open_meter
from skep.paths import Paths
from skep.store.database import Store
from skep.supervisor.control import NotRunning, ask, connected, socket_of
from skep.supervisor.hive_status import NO_REPLICAS
from skep.tuner.knobs import apply_config
from skep.tuner.measure import EngineBench
from skep.tuner.power_limits import PowerLimits, record_of, restore_power_limits
from skep.tuner.quality_check import MOST_S, GuardPlan, calls_tools, open_guard
from skep.tuner.records import Bench, BenchResult, JudgeRequest, TuneEvent
from skep.tuner.search import KnobSearch
from skep.tuner.session_bench import SessionBench
from skep.tuner.setup import UNJUDGED, PreparedTuning
from skep.tuner.simulated import SimulatedBench
from skep.tuner.store import TuningOutcome, TuningStore
from skep.tuner.trial_server import TrialServers, tuner_lock

Clock = Callable[[], float]  # unix seconds
OnEvent = Callable[[TuneEvent], None]


class TuningJournal:
    """One session of a stored tuning, open until `end`.

    UserError where it has ended or another one is at work.
    """

    def __init__(self, tunings: TuningStore, name: str, clock: Clock) -> None:
        record = tunings.find(name)
        self._tunings = tunings
        self.tuning = record.tuning
        self._clock = clock
        self._session = tunings.begin_session(record.id, clock())
        self._ended = False
        self.stages = tunings.stages(record.id)  # those stored; they only grow
        self.past = tunings.answers(record.id)  # what earlier sessions asked for, and got

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End a session that was left without `end`: it is not done.

        Ctrl-C and cancellation are no fault.
        """
        if self._ended:
            return
        if isinstance(error, BaseExceptionGroup):
            first: BaseException | None = first_of(error)
        else:
            first = error
        if isinstance(first, Exception):
            fault = str(first) or type(first).__name__
        else:
            fault = None
        try:
            self.end("stopped" if fault is None else "failed", fault)
        except StoreError:
            if error is None:  # else that is told, not that it could not be written down
                raise

    def replay(self, search: KnobSearch) -> float:
        """Give the search its stored answers again. Return how many seconds they took.

        UserError where it asks for something else, or decides otherwise: nothing has been written
        then.
        """
        for stored, answer in self.past:
            if search.request != stored:
                raise self._differs(f"`{stored.words}` is not what would be asked for now")
            search.tell(answer)
        for step, decided in zip(self.stages, search.stages, strict=False):
            # The words may be those of another version.
            in_todays_words = msgspec.structs.replace(step, why=decided.why)
            if in_todays_words != decided:
                raise self._differs(
                    f"step {step.number}, `{step.title}`, would be decided otherwise now"
                )
        return sum(answer.seconds for _, answer in self.past)

    async def run(
        self, search: KnobSearch, bench: Bench, on_event: OnEvent = lambda _: None
    ) -> None:
        """Carry requests out until the search asks for nothing more.

        Cancelled: the request under way leaves nothing, what was decided stands; another session
        goes on from there.
        """
        with self:
            while (request := search.request) is not None:
                on_event(request)
                await asyncio.sleep(0)  # a bench in virtual time never waits: Ctrl-C is heard here
                answer: BenchResult
                if isinstance(request, JudgeRequest):
                    answer = await bench.judge(request, on_event)
                else:
                    answer = await bench.measure(request, on_event)
                search.tell(answer)
                fresh = search.stages[len(self.stages) :]
                self._tunings.append(self.tuning.id, fresh, self._clock(), (request, answer))
                self.stages += fresh
                on_event(answer)
                for stage in fresh:
                    on_event(stage)
            self.end("done", search.ended)

    def end(self, outcome: TuningOutcome, reason: str | None = None) -> None:
        """End the session. `reason`: what went wrong, or why nothing more was tried."""
        self._tunings.end_session(
            self.tuning.id, self._session, at=self._clock(), outcome=outcome, reason=reason
        )
        self._ended = True

    def _differs(self, difference: str) -> UserError:
        tuning = self.tuning
        hint = "start a new one; `skep tune show` and `skep tune export` still know this one"
        why = f"was started by skep {tuning.skep_version} and cannot go on"
        return UserError(f"tuning `{tuning.id}` {why}: {difference}", hint=hint)


class Service(msgspec.Struct, frozen=True):
    """What `skep up` serves on this machine."""

    url: str
    models: tuple[str, ...]
    pid: int
    gpus: tuple[int, ...]

    def __str__(self) -> str:
        if self.gpus:
            cards = f" on GPU {', '.join(map(str, self.gpus))}"
        else:
            cards = ""
        models = ", ".join(self.models) or "no model"
        return f"skep serves {models}{cards} at {self.url} (pid {self.pid})"

    def shares(self, cards: Sequence[int]) -> tuple[int, ...]:
        """Return which of its cards are among these; all of them where none are named."""
        return tuple(card for card in self.gpus if not cards or card in cards)


def running_service(paths: Paths) -> Service | None:
    """Return what `skep up` serves here; None: nothing runs."""
    try:
        status = ask(socket_of(paths.lock, paths.socket), {"op": "status"})
    except NotRunning:
        return None
    rows = [row for row in status["rows"] if row["kind"] not in NO_REPLICAS]
    models = tuple(sorted({row["model"] for row in rows if row["model"]}))
    rooms = {name for row in rows for name in row.get("room") or {} if name.startswith("gpu")}
    gpus = sorted(int(name.removeprefix("gpu")) for name in rooms)
    return Service(status["url"], models, status["pid"], tuple(gpus))


@contextmanager
def service_paused(paths: Paths) -> Iterator[Service | None]:
    """Pause what `skep up` serves: its engines end, after their answers, and serve again when the
    block is left, or when this process is killed.
    """
    service = running_service(paths)
    if service is None:
        yield None
        return
    with connected(socket_of(paths.lock, paths.socket), None) as say:
        say({"op": "pause", "pid": os.getpid()})
        error: BaseException | None = None
        try:
            yield service
        except BaseException as raised:
            error = raised
        trouble = _resume(say)
    if trouble is not None and isinstance(error, SkepError):  # both are told
        error.hint = "; ".join(filter(None, (f"{trouble}: {trouble.hint}", error.hint)))
    elif trouble is not None:
        raise trouble from error
    if error is not None:
        raise error


def _resume(say: Callable[[dict[str, Any]], object]) -> EngineError | None:
    """Let it serve again, and return what keeps it from that."""
    try:
        say({"op": "resume"})
    except NotRunning:
        return EngineError(
            "the deployment was stopped during the tuning", hint="start it with `skep up -d`"
        )
    except SkepError as error:
        return EngineError(
            f"the deployment could not be started again: {error.message}", hint=error.hint
        )
    return None


_IN_USE = (
    "--in-place pauses it and starts it again at the end; --gpus uses other cards; or run `skep "
    "down`"
)
GUARD_SHARE = 0.1  # of the budget, for the answers of one configuration

Say = Callable[[str], None]


def logs_folder(paths: Paths, tuning_id: str) -> Path:
    """Return where its engines were started; logs of those that failed stay there."""
    return paths.state / "tunings" / tuning_id


@contextmanager
def power_put_back(paths: Paths, say: Say) -> Iterator[None]:
    """Put back the power limits that a killed tuning has left, and those that are changed in the
    block.
    """
    put_power_back(paths, say, "a tuning that was killed had changed it: ")
    try:
        yield
    finally:
        put_power_back(paths, say)


def put_power_back(paths: Paths, say: Say, why: str = "") -> None:
    try:
        words = restore_power_limits(record_of(paths))
    except EngineError as error:  # the tuning is none the worse for it
        say(f"warning: {error.message}; {error.hint}")
        return
    if words is not None:
        say(f"{why}{words}")


@contextmanager
def machine_for(
    ready: PreparedTuning, paths: Paths, say: Say, *, in_place: bool
) -> Iterator[None]:
    """Hold the machine for one tuner; what `skep up` serves is paused meanwhile, or left alone
    where both can be.
    """
    if ready.tuning.simulated:
        yield
        return
    with tuner_lock(paths), power_put_back(paths, say):
        if not in_place and (service := running_service(paths)) is not None:
            # Where both would have the same cards there is no room; elsewhere they only disturb
            # each other.
            if ready.space.rig is not None and (shared := service.shares(ready.space.base.gpus)):
                raise EngineError(
                    f"GPU {', '.join(map(str, shared))} is in use: {service}", hint=_IN_USE
                )
            say(f"warning: {service}; its requests slow down what is measured here")
        with service_paused(paths) if in_place else nullcontext() as service:
            if service is not None:
                say(f"paused until the tuning ends: {service}")
            try:
                yield
            finally:
                if service is not None:
                    say(f"{', '.join(service.models)} is served again at {service.url}")


async def carry_out(
    ready: PreparedTuning,
    journal: TuningJournal,
    search: KnobSearch,
    store: Store,
    paths: Paths,
    *,
    progress: PullProgress = lambda _done, _total: None,
    on_event: OnEvent = lambda _: None,
) -> None:
    """Run the search to its end. What an earlier session measured is given to it first."""
    with journal:
        spent_s = journal.replay(search)
        try:
            await journal.run(
                search, _bench(ready, journal, store, paths, progress, spent_s), on_event
            )
        finally:
            folder = logs_folder(paths, journal.tuning.id)
            for place in (folder, folder.parent):  # where they are empty
                with suppress(OSError):
                    place.rmdir()


def _bench(
    ready: PreparedTuning,
    journal: TuningJournal,
    store: Store,
    paths: Paths,
    progress: PullProgress,
    spent_s: float,
) -> Bench:
    tuning = journal.tuning
    if tuning.simulated:
        return SimulatedBench(ready.space, seed=tuning.seed, now_s=spent_s)
    host = read_host()
    base = ready.space.base
    guard = None
    if ready.options.quality != UNJUDGED:
        most_s = min(MOST_S, GUARD_SHARE * tuning.budget_s)
        plan = GuardPlan(
            tuning.aim.concurrency,
            seed=tuning.seed,
            tuning=tuning.id,
            most_s=most_s,
            with_tools=calls_tools(base),
        )
        guard = open_guard(plan, store, host, paths.cache)
    work = logs_folder(paths, tuning.id)
    work.mkdir(parents=True, exist_ok=True)
    servers = TrialServers(paths, work, binary=ready.options.binary, progress=progress)
    kind: type[EngineBench] = EngineBench
    if tuning.aim.sessions is not None:
        kind = SessionBench
    bench = kind(
        servers=servers,
        store=store,
        host=host,
        tuning=tuning.id,
        aim=tuning.aim,
        seed=tuning.seed,
        preset_of=lambda config: apply_config(base, config),
        first_round=len(journal.past),
        guard=guard,
    )
    if isinstance(bench, SessionBench) and ready.space.rig is not None:
        bench.meter = open_meter(",".join(map(str, base.gpus)) or None)
        if ready.options.allow is not None:
            cards = base.gpus or tuple(gpu.index for gpu in host.gpus)
            bench.power_limits = PowerLimits(cards, record_of(paths))
    return bench
