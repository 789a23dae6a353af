"""A sweep: fresh tasks at each concurrency, in turns, until each level is known well enough. Every
request is stored.

It warms up until the speed is steady; `LevelRounds` or `LevelSearch` says which level comes next
and when it is enough."""

from __future__ import annotations

import resource
import time
from functools import partial
from typing import Any

import msgspec

from skep.bench.endpoint import Endpoint
from skep.bench.level_rounds import LevelRounds, LevelSearch
from skep.bench.load_shapes import run_conversations
from skep.bench.metrics import SweepSummary, repeat_of
from skep.bench.session import Identity, OnProgress, Recording, RunSession, fingerprint_of
from skep.bench.speedup import SERIAL_SAMPLE, SampledTasks
from skep.bench.summary import FEWEST_TASKS_EACH, SEARCH_FACT
from skep.bench.tasks import TaskMaker, Workload
from skep.catalog.gpus import HostFacts
from skep.host.power import PowerMeter
from skep.stats.sequential import PrecisionGoal
from skep.stats.slo import SloLimits
from skep.store.database import Store
from skep.store.records import LevelFact, Request
from skep.workload.prompts import workload_fingerprint

WARM_UP_SHARE = 0.15  # of the budget, at most
CLOSING_SHARE = 0.1
FEWEST_TASKS = 6  # of a run, unless asked otherwise
WARM_UP_AGENTS = 8  # where the levels are not known beforehand
MOST_AGENTS = 4096  # of one client
SPARE_FILES = 100  # that are no streams
SPARE_SHARE_OF_RUN = 0.7  # of a run's time must be left for another one of its level


class SweepPlan(msgspec.Struct, frozen=True):
    """`runs` None: as many of each level as its interval needs, within the budget."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    # Instead of these levels, double from C=1 until two levels lie past the knee.
    finds_knee: bool = False
    tasks: int | None = None  # per run of a level; None: three for each agent, six at least
    runs: int | None = None
    precision: float = 0.03  # half of the 95 % interval, as a share
    most_runs: int = 8
    budget_s: float | None = 600.0
    workload: Workload = msgspec.field(default_factory=Workload)
    # The same tasks at every level, each time with another first line: no cache has seen them.
    same_tasks: bool = False
    slo: SloLimits | None = None  # for which the summary says which levels keep them
    timeout_s: float = 900.0
    keep_text: bool = True
    quick_warm_up: bool = False  # one batch, however it went
    serial_sample: int | None = None  # tasks of C=1, of the same tasks; None: all
    quick: bool = False  # answers were cut short for a first look
    kind: str = "sweep"

    @property
    def is_burst(self) -> bool:
        return self.workload.shape == "burst"

    def tasks_at(self, level: int) -> int:
        if self.is_burst:
            return level
        if level == 1 and self.serial_sample is not None:
            return self.serial_sample
        enough = FEWEST_TASKS_EACH * level
        if self.finds_knee:
            return max(enough, self.tasks or FEWEST_TASKS)
        return max(level, self.tasks or max(FEWEST_TASKS, enough))

    @property
    def warm_up_width(self) -> int:
        if self.finds_knee:
            widest = WARM_UP_AGENTS
        else:
            widest = max(self.concurrency)
        return min(widest, self.tasks_at(widest))


async def run_sweep(
    plan: SweepPlan,
    endpoint: Endpoint,
    store: Store,
    host: HostFacts,
    on_progress: OnProgress = lambda _: None,
    *,
    maker: TaskMaker | None = None,
    meter: PowerMeter | None = None,
) -> SweepSummary:
    """Run a sweep and return its summary.

    Faults of single requests become rows. An error that ends the run as a whole is raised, and
    the rows so far are kept.
    """
    maker = maker or TaskMaker(plan.workload)
    config = {
        **msgspec.to_builtins(plan),
        "slo": str(plan.slo) if plan.slo else None,
        **maker.lengths,
    }
    identity = Identity(plan.kind, run_fingerprint(plan, endpoint, host), config)
    async with Recording(store, endpoint, host, identity) as recording:
        sweep = Sweep(plan, endpoint, recording, maker, on_progress, meter)
        async with sweep.session.open():
            await sweep.run()
    return sweep.session.summary(slo=plan.slo, burst=plan.is_burst)


def run_fingerprint(plan: SweepPlan, endpoint: Endpoint, host: HostFacts) -> str:
    """Return a digest that is equal for repeats: the seed and the endpoint's address may differ;
    workload, engine and machine may not.
    """
    load = plan.workload
    names = ("max_tokens", "fixed_output", "prompt_tokens", "shape", "temperature")
    if plan.finds_knee:
        levels = "auto"
    else:
        levels = ",".join(map(str, plan.concurrency))
    options = {
        "concurrency": levels,
        "tasks": plan.tasks,
        "size": "short",  # as older runs say of short prompts
    }
    work = workload_fingerprint(options | {name: getattr(load, name) for name in names})
    return fingerprint_of([work], endpoint, host)


def most_agents() -> int:
    """Return how many streams this client can have at once: each is an open file."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_AGENTS
    return max(1, min(MOST_AGENTS, files - SPARE_FILES))


class Sweep:
    """Runs the levels of a plan in turns, within its budget of time."""

    def __init__(
        self,
        plan: SweepPlan,
        endpoint: Endpoint,
        recording: Recording,
        maker: TaskMaker,
        on_progress: OnProgress,
        meter: PowerMeter | None = None,
    ) -> None:
        self.plan = plan
        self.recording = recording
        goal = PrecisionGoal(relative=plan.precision, max_repeats=plan.most_runs)
        self.course: LevelRounds | LevelSearch
        if plan.finds_knee:
            widest = most_agents()
            self.course = LevelSearch(goal, max_agents=widest, runs=plan.runs)
        else:
            widest = max(plan.concurrency)
            self.course = LevelRounds(plan.concurrency, goal, runs=plan.runs)
        self.session = RunSession(
            endpoint,
            recording,
            on_progress,
            widest=widest,
            keep_text=plan.keep_text,
            extra_fields=self._outlook,
            timeout_s=plan.timeout_s,
            meter=meter,
        )
        self._maker = maker
        self._repeats: dict[int, int] = {}
        self._durations: dict[int, float] = {}
        self._began = time.monotonic()
        self._figures: dict[int, list[float]] = {}
        self._runs_done = 0

    async def run(self) -> None:
        self._began = time.monotonic()
        await self.warm_up()
        while (level := self.course.next_level()) is not None and self._has_time(level):
            await self.run_level(level, within_budget=True)
        if isinstance(self.course, LevelSearch):
            end = self.course.ended()
            self.recording.add_fact(LevelFact(end.at, 0, SEARCH_FACT, msgspec.to_builtins(end)))
        if level not in (None, 1):  # the budget has ended it
            await self._close_with_one_agent()

    async def _close_with_one_agent(self) -> None:
        """Run C=1 once more although the budget is spent, where that takes a small part of it."""
        serial_s = self._durations.get(1)
        budget_s = self.plan.budget_s
        if self.plan.runs is not None or serial_s is None or budget_s is None:
            return
        if serial_s < CLOSING_SHARE * budget_s:
            await self.run_level(1)

    async def run_level(self, level: int, *, within_budget: bool = False) -> list[Request]:
        """Run a level once and return its rows.

        `within_budget`: if the budget is spent before the level begins, each agent has one task;
        without it, all tasks run.
        """
        repeat = self._repeats.get(level, 0)
        self._repeats[level] = repeat + 1
        total = self.plan.tasks_at(level)
        self.session.begin(level=level, repeat=repeat, done=0, total=total)
        began = time.monotonic()
        if self.plan.workload.shape == "conversation":
            rows, limited = await self._run_conversations(level, repeat, total)
        else:
            rows, limited = await self._run_tasks(
                level, repeat, total, within_budget=within_budget
            )
        if level == 1 and self.plan.serial_sample is not None and self.plan.tasks is not None:
            sampled = msgspec.to_builtins(SampledTasks(self.plan.tasks))
            self.recording.add_fact(LevelFact(level, repeat, SERIAL_SAMPLE, sampled))
        self._durations[level] = time.monotonic() - began
        self._runs_done += 1
        self._figures.setdefault(level, []).append(
            repeat_of(0, rows, None).effective_tok_s if rows else 0.0
        )
        self.course.add_run(level, rows, limited=limited)
        self.session.report(ended=True)
        self.recording.check()
        return rows

    async def _run_conversations(
        self, level: int, repeat: int, total: int
    ) -> tuple[list[Request], bool]:
        conversations = self._maker.conversations(level, repeat, total)
        return await self.session.driver.run_load(
            level=level,
            repeat=repeat,
            load=partial(run_conversations, conversations=conversations, width=level),
            width=level,
            on_row=self.session.count_row,
            is_closed=False,
        )

    async def _run_tasks(
        self, level: int, repeat: int, total: int, *, within_budget: bool
    ) -> tuple[list[Request], bool]:
        driver = self.session.driver
        tasks = self._maker.tasks(level, repeat, total, same=self.plan.same_tasks)
        budget_left_s = self._budget_left()
        until_s = None  # on the run's clock: later no task begins, and those under way end
        if budget_left_s is not None and (within_budget or budget_left_s > 0):
            until_s = driver.sender.now() + budget_left_s
        return await driver.run_tasks(
            level, repeat, tasks, level, self.session.count_row, until_s=until_s
        )

    async def warm_up(self) -> None:
        plan = self.plan
        if plan.budget_s:
            limit_s = WARM_UP_SHARE * plan.budget_s
        else:
            limit_s = None
        await self.session.warm_up(
            self._maker, plan.warm_up_width, limit_s=limit_s, quick=plan.quick_warm_up
        )

    def _has_time(self, level: int) -> bool:
        """Return whether a run of this level may begin.

        A level that was never run may while there is any time; another run must be expected to
        fit.
        """
        budget_left_s = self._budget_left()
        if budget_left_s is None or not self._runs_done:
            return True
        last_s = self._durations.get(level)
        if last_s is None:
            return budget_left_s > 0
        return budget_left_s > SPARE_SHARE_OF_RUN * last_s

    def _budget_left(self) -> float | None:
        if self.plan.budget_s is None or self.plan.runs is not None:
            return None
        return self.plan.budget_s - (time.monotonic() - self._began)

    def _outlook(self) -> dict[str, Any]:
        """Return what is left of the run, estimated from how long runs of the levels took.

        A level that was not run yet is taken for the slowest.
        """
        remaining = self.course.remaining()
        left_s = None
        if self._durations:
            slowest = max(self._durations.values())
            allowed = self._budget_left()
            left_s = sum(
                runs * self._durations.get(level, slowest) for level, runs in remaining.items()
            )
            if allowed is not None:
                left_s = max(0.0, min(left_s, allowed))
        runs_left = sum(remaining.values())
        return {
            "runs_done": self._runs_done,
            "runs_left": runs_left,
            "left_s": left_s,
            "figures": self._figures,
        }
