"""Presets measured one after the other: each is started, swept and stopped, here or as a simulated
rig.

A preset that is refused, does not start or dies under load is a result, and the next one goes on.
Knows no terminal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from skep.bench.calibration import calibration_from_sweep
from skep.bench.endpoint import Endpoint, find_endpoint
from skep.bench.metrics import SweepSummary
from skep.bench.published import PublishedShare, published_shares
from skep.bench.session import Identity, OnProgress, Recording
from skep.bench.sweep import Sweep, SweepPlan, run_fingerprint
from skep.bench.tasks import TaskMaker, Workload
from skep.catalog.gpus import HostFacts
from skep.catalog.presets import Preset
from skep.config.presets import serve_of
from skep.config.settings import Serve
from skep.deploy.resolve import ServeRequest, check_cards, simulated_serve
from skep.errors import EndpointError, SkepError, first_of
from skep.host.power import PowerMeter
from skep.paths import Paths
from skep.store.database import Store
from skep.tuner.measure import WatchedLoad
from skep.tuner.records import ConfigFailed, ConfigFailure
from skep.tuner.trial_server import TrialServer, TrialServers

TELL_EVERY_S = 15.0  # while an engine starts
HANG_S = 120.0  # without a token of anybody, where prompts are not long
FIRST_TOK_S = 50.0  # prompts are read at least so fast


class MeasuredPreset(msgspec.Struct, frozen=True):
    """What came of one preset. With a failure, `summary` has the levels that were measured before
    it, if any.

    `rig`: the cards it was simulated on, where they are not its own. `interrupted`: by the user.
    """

    preset: Preset
    simulated: bool = False
    summary: SweepSummary | None = None
    failure: ConfigFailure | None = None
    start_s: float | None = None
    rig: str | None = None
    interrupted: bool = False

    @property
    def has_figures(self) -> bool:
        return self.summary is not None and bool(self.summary.levels)

    def shares(self) -> list[PublishedShare]:
        """Return what each level reached of its author's figure of output tokens; nothing on other
        cards.
        """
        if self.rig is not None or self.summary is None:
            return []
        of_output = [figure for figure in self.preset.published if figure.metric == "output"]
        return published_shares(of_output, self.summary)


@dataclass(eq=False)
class PresetSweeps:
    """Measures presets on one machine. `maker_for` and `meter_for` are asked for each endpoint."""

    paths: Paths
    servers: TrialServers
    store: Store
    host: HostFacts
    plan: SweepPlan
    maker_for: Callable[[Workload, Endpoint], Awaitable[TaskMaker]]
    meter_for: Callable[[Endpoint], PowerMeter | None]
    say: Callable[[str], None]
    simulate: bool = False
    rig: str | None = None  # to simulate on, instead of each preset's own cards

    async def measure(
        self,
        preset: Preset,
        on_progress: OnProgress,
        keep: Callable[[MeasuredPreset], None] = lambda _result: None,
    ) -> MeasuredPreset:
        """Start, sweep and stop one preset.

        `keep`: is given what there is where the sweep is interrupted.
        """
        result = MeasuredPreset(preset, self.simulate, rig=self.rig)
        if self.simulate and preset.broken is not None and self.rig is None:
            failure = ConfigFailure("no-start", f"published, not simulated: {preset.broken}")
            return msgspec.structs.replace(result, failure=failure)
        try:
            serve = self._serve(preset)
        except SkepError as error:
            failure = ConfigFailure("refused", error.message, remedy=error.hint)
            return msgspec.structs.replace(result, failure=failure)
        attempt = _PresetAttempt(result)
        try:
            await self._attempt(preset, serve, attempt, on_progress)
        except ConfigFailed as error:
            attempt.result = msgspec.structs.replace(attempt.result, failure=error.failure)
        except asyncio.CancelledError:
            attempt.take_summary(self.plan)
            if attempt.result.has_figures:
                keep(msgspec.structs.replace(attempt.result, interrupted=True))
            raise
        attempt.take_summary(self.plan)
        return attempt.result

    async def _attempt(
        self, preset: Preset, serve: Serve, attempt: _PresetAttempt, on_progress: OnProgress
    ) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(self._tell_waiting(preset))
                async with self.servers.open(preset, serve) as served:
                    waiting.cancel()
                    attempt.result = msgspec.structs.replace(
                        attempt.result, start_s=served.start_s
                    )
                    self.say(f"{preset.name}: ready after {served.start_s:.0f} s")
                    await self._sweep(preset, served, attempt, on_progress)
        except BaseExceptionGroup as group:
            raise first_of(group) from None

    async def _tell_waiting(self, preset: Preset) -> None:
        for seconds in count(TELL_EVERY_S, TELL_EVERY_S):
            await asyncio.sleep(TELL_EVERY_S)
            self.say(f"{preset.name}: still starting after {seconds:.0f} s")

    def _serve(self, preset: Preset) -> Serve:
        if self.simulate:
            gpu = () if self.rig is None else (self.rig,)
            model, options = simulated_serve(ServeRequest(preset.name, gpu=gpu), self.paths)
            return Serve(model=model, **options)
        serve = serve_of(preset)
        check_cards(preset, serve)
        return serve

    async def _sweep(
        self, preset: Preset, served: TrialServer, attempt: _PresetAttempt, on_progress: OnProgress
    ) -> None:
        try:
            endpoint = await find_endpoint(served.url, served.model)
            maker = await self.maker_for(self.plan.workload, endpoint)
        except EndpointError as error:
            failure = served.trouble() or ConfigFailure(
                "errors-under-load", error.message, served.last_words()
            )
            raise ConfigFailed(failure) from None
        plan = self.plan
        config: dict[str, Any] = {
            **msgspec.to_builtins(plan),
            "slo": str(plan.slo) if plan.slo else None,
        }
        config |= {**maker.lengths, "preset": preset.name}
        identity = Identity(plan.kind, run_fingerprint(plan, endpoint, self.host), config)
        async with Recording(self.store, endpoint, self.host, identity) as recording:
            attempt.sweep = sweep = Sweep(
                plan, endpoint, recording, maker, on_progress, self.meter_for(endpoint)
            )
            async with sweep.session.open():
                await WatchedLoad(served, sweep.session, self._hang_s()).send(sweep.run())
        attempt.take_summary(plan)
        rows = [row for row in recording.rows if row.level]
        if endpoint.engine.get("setup") and attempt.result.summary is not None:
            calibration = calibration_from_sweep(
                plan, endpoint, attempt.result.summary, rows, self.host
            )
            if calibration is not None:
                self.store.append_calibration(calibration)

    def _hang_s(self) -> float:
        """Return how long no token may come: long prompts of many agents are read for minutes."""
        prompt_tokens = self.plan.workload.prompt_tokens or 0
        read_s = prompt_tokens * max(self.plan.concurrency) / FIRST_TOK_S
        return max(HANG_S, read_s)


@dataclass(eq=False)
class _PresetAttempt:
    """One preset while it is measured: what is known so far, and the sweep that is under way."""

    result: MeasuredPreset
    sweep: Sweep | None = None

    def take_summary(self, plan: SweepPlan) -> None:
        """Put what the sweep has measured so far into the result."""
        if self.sweep is not None:
            summary = self.sweep.session.summary(slo=plan.slo, burst=plan.is_burst)
            self.result = msgspec.structs.replace(self.result, summary=summary)
