"""The simulated engine behind the engine port: a prediction, served in real time.

Needs no weights and no GPU.
"""

from __future__ import annotations

import json

import msgspec

from skep.engines.base import Launch, OwnEngine, other_host
from skep.errors import UserError
from skep.host.processes import REPORT_FD
from skep.planner.caching import BLOCK_TOKENS
from skep.planner.memory import state_pages
from skep.planner.predict import SpeedModel
from skep.planner.step import StepModel
from skep.units import GIB

LOAD_BYTES_PER_S = 20 * GIB  # a real load takes longer; nobody wants to wait for what is not there
LOAD_MOST_S = 2.0


class SimulatedPlan(msgspec.Struct, frozen=True):
    """`about`: model, quantization, layout, cards and engine in words, for records and answers.

    `ram_tokens`: of KV that RAM holds besides the card's pool; `ram_tokens_s` come back a second.
    """

    about: str
    slots: int
    context_tokens: int
    pool_tokens: float
    chunk_tokens: int
    load_s: float
    step: StepModel
    block_tokens: int = BLOCK_TOKENS
    state_blocks: int = 0  # that a kept state of linear layers takes
    ram_tokens: float = 0.0
    ram_tokens_s: float = 1.0

    def to_json(self) -> str:
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))


def plan_from_json(text: str) -> SimulatedPlan:
    try:
        return msgspec.convert(json.loads(text), SimulatedPlan)
    except (ValueError, msgspec.ValidationError) as error:
        hint = '`skep up MODEL --gpu "2x rtx-3090" --simulate` makes one'
        raise UserError(
            f"the plan of the simulated engine cannot be read: {error}", hint=hint
        ) from None


def plan_of(
    prospect: SpeedModel, *, context_tokens: int, about: str, weight_bytes: int | None = None
) -> SimulatedPlan:
    """Return the plan of a simulated engine. `weight_bytes`: of one replica; they take some time
    to load, much less than real ones.
    """
    load_s = round(min(LOAD_MOST_S, (weight_bytes or 0) / LOAD_BYTES_PER_S), 3)
    pages = state_pages(prospect.setup)
    return SimulatedPlan(
        about=about,
        slots=prospect.slots,
        context_tokens=context_tokens,
        pool_tokens=prospect.whole_pool_tokens,
        chunk_tokens=prospect.chunk_tokens,
        load_s=load_s,
        step=prospect.step,
        block_tokens=BLOCK_TOKENS if pages is None else pages.block_tokens,
        state_blocks=0 if pages is None else pages.blocks,
    )


class Simulated(OwnEngine):
    module = "skep.engines.simulated_server"
    confirms = "metrics"
    simulated = True

    def check(self, launch: Launch) -> None:
        extra = launch.extra
        if len(extra) != 2 or extra[0] != "--plan":
            hint = f'`skep up {launch.model} --gpu "2x rtx-3090" --simulate` makes one'
            raise UserError(f"the simulated engine has no plan for `{launch.model}`", hint=hint)
        plan_from_json(extra[1])

    def argv(self, launch: Launch) -> list[str]:
        words = [
            "--model",
            launch.model,
            "--slots",
            launch.slots,
            "--context",
            launch.context_tokens,
        ]
        where = ["--port", launch.port, "--report-fd", REPORT_FD, *other_host(launch)]
        return self.words(*words, *where, launch=launch)

    def version(self) -> str | None:
        return "simulated"
