"""The fake engine of `skep.testing` behind the engine port: for tests and for trying the gateway without a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from skep.engines.adapter import flag
from skep.engines.api_key import ENGINE_KEY, key_variables
from skep.engines.base import REPORT_FD, Diagnosis, Launch
from skep.engines.diagnosis import diagnose
from skep.engines.ports import HOST


class Fake:
    health_path = "/health"
    reports_address = True
    confirms = "slots"
    release_bound_s = 30.0
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.model, "--slots", str(launch.slots), "--port", str(launch.port)]
        own += flag("--host", launch.host if launch.host != HOST else None)
        return [sys.executable, "-m", "skep.testing.fake_engine", *own, "--report-fd", REPORT_FD, *launch.extra]

    def version(self) -> str | None:
        return "fake"

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**dict(launch.env), **key_variables(launch, ENGINE_KEY)}

    def explain(
        self, launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
    ) -> Diagnosis:
        return diagnose(launch, code, tail, oom_kills=oom_kills)
