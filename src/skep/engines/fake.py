"""The fake engine of `skep.testing` behind the engine port: for tests and for trying the gateway without a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from skep.engines.base import REPORT_FD, Launch, explain_exit


class Fake:
    health_path = "/health"
    confirms = "slots"
    release_bound_s = 30.0
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.model, "--slots", str(launch.slots), "--port", str(launch.port)]
        return [sys.executable, "-m", "skep.testing.fake_engine", *own, "--report-fd", REPORT_FD, *launch.extra]

    def version(self) -> str | None:
        return "fake"

    def explain(self, code: int, tail: Sequence[str]) -> str:
        return explain_exit(code, tail)
