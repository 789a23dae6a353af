"""The fake engine of `skep.testing` behind the engine port: for tests and for trying the gateway without a model."""

from __future__ import annotations

import sys

from skep.engines.adapter import OwnEngine, flag
from skep.engines.base import REPORT_FD, Launch
from skep.wire.listen import HOST


class Fake(OwnEngine):
    simulated = True

    def check(self, launch: Launch) -> None:
        pass

    def argv(self, launch: Launch) -> list[str]:
        own = ["--model", launch.model, "--slots", str(launch.slots), "--port", str(launch.port)]
        own += flag("--host", launch.host if launch.host != HOST else None)
        return [sys.executable, "-m", "skep.testing.fake_engine", *own, "--report-fd", REPORT_FD, *launch.extra]

    def version(self) -> str | None:
        return "fake"
