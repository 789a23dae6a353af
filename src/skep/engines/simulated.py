"""The simulated engine behind the engine port: a prediction, served in real time. Needs no weights and no GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from skep.engines.adapter import flag
from skep.engines.base import REPORT_FD, Diagnosis, Launch
from skep.engines.binding import HOST
from skep.engines.diagnosis import diagnose
from skep.engines.enginekey import ENGINE_KEY, key_variables
from skep.engines.simulated_plan import plan_from_json
from skep.errors import UserError


class Simulated:
    health_path = "/health"
    reports_address = True
    confirms = "metrics"
    release_bound_s = 30.0
    simulated = True

    def check(self, launch: Launch) -> None:
        extra = launch.extra
        if len(extra) != 2 or extra[0] != "--plan":
            hint = f'`skep up {launch.model} --gpu "2x rtx-3090" --simulate` makes one'
            raise UserError(f"the simulated engine has no plan for `{launch.model}`", hint=hint)
        plan_from_json(extra[1])

    def argv(self, launch: Launch) -> list[str]:
        options = {
            "--model": launch.model,
            "--slots": launch.slots,
            "--context": launch.context_tokens,
            "--port": launch.port,
            "--report-fd": REPORT_FD,
        }
        flat = [str(part) for option in options.items() for part in option]
        where = flag("--host", launch.host if launch.host != HOST else None)
        return [sys.executable, "-m", "skep.engines.simulated_server", *flat, *where, *launch.extra]

    def version(self) -> str | None:
        return "simulated"

    def environment(self, launch: Launch) -> dict[str, str]:
        return {**dict(launch.env), **key_variables(launch, ENGINE_KEY)}

    def explain(
        self, launch: Launch, code: int | None, tail: Sequence[str], *, oom_kills: int | None = None
    ) -> Diagnosis:
        return diagnose(launch, code, tail, oom_kills=oom_kills)
