"""The fake engine of `skep.testing` behind the engine port: for tests and for trying the gateway without a model."""

from __future__ import annotations

from skep.engines.adapter import OwnEngine, other_host
from skep.engines.base import REPORT_FD, Launch


class Fake(OwnEngine):
    module = "skep.testing.fake_engine"
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.model, "--slots", launch.slots, "--port", launch.port, *other_host(launch)]
        return self.words(*own, "--report-fd", REPORT_FD, launch=launch)

    def version(self) -> str | None:
        return "fake"
