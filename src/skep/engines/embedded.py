"""The embedded engine: llama.cpp's own server with continuous batching, from the PyPI package xllamacpp."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

from skep.engines.base import REPORT_FD, Diagnosis, Launch
from skep.engines.diagnosis import diagnose
from skep.errors import EngineError, UserError


class Embedded:
    health_path = "/health"
    reports_address = True
    confirms = "slots"
    release_bound_s = 30.0
    simulated = False

    def check(self, launch: Launch) -> None:
        if find_spec("xllamacpp") is None:
            raise EngineError("the embedded engine is not installed", hint="run `pip install 'skep[embedded]'`")
        if launch.weights is None:
            raise UserError(
                f"the embedded engine has no weights for `{launch.model}`", hint=f"run `skep pull {launch.model}`"
            )

    def argv(self, launch: Launch) -> list[str]:
        options = {
            "--model": launch.weights,
            "--alias": launch.model,
            "--slots": launch.slots,
            "--context": launch.context_tokens,
            "--threads": launch.threads,
            "--port": launch.port,
            "--report-fd": REPORT_FD,
        }
        flat = [str(part) for option in options.items() for part in option]
        return [sys.executable, "-m", "skep.engines.embedded_server", *flat, *launch.extra]

    def version(self) -> str | None:
        try:
            return f"xllamacpp {metadata.version('xllamacpp')}"
        except metadata.PackageNotFoundError:
            return None

    def environment(self, launch: Launch) -> dict[str, str]:
        return dict(launch.env)

    def explain(
        self, launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
    ) -> Diagnosis:
        return diagnose(launch, code, tail, oom_kills=oom_kills)
