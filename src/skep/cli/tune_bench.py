"""The bench of a tuning, put together: real engines in a house of their own, or a rig in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext

from skep.cli.output import byte_progress, note
from skep.cli.tune_ground import Wishes
from skep.cli.tuning import Ready
from skep.errors import EngineError, UserError
from skep.host.facts import read_host
from skep.host.power import open_meter
from skep.places import Paths
from skep.service_pause import running_service, service_paused
from skep.store.database import Store
from skep.tryout import Tryout, tuner_lock
from skep.tuner.knobs import turned
from skep.tuner.measure import EngineBench, Tuned
from skep.tuner.ports import Bench
from skep.tuner.quality_check import ITEMS, MOST_S, GuardPlan, QualityGuard, guard_bank, open_guard
from skep.tuner.simulated import SimulatedBench
from skep.tuner.simulated_planned import PlannedTruth
from skep.tunings import Tuning

USUAL_BANK, NO_BANK, CHOSEN_BANK = "drills", "off", "auto"
GUARD_SHARE = 0.1  # of the budget, for the answers of one configuration


@contextmanager
def machine_for(ready: Ready, paths: Paths, *, in_place: bool) -> Iterator[None]:
    """Held for one tuner; what `skep up` serves is paused meanwhile, or left alone where both can be."""
    if ready.tuning.simulated:
        yield
        return
    with tuner_lock(paths):
        if not in_place:
            _check_service(ready, paths)
        with service_paused(paths) if in_place else nullcontext() as service:
            if service is not None:
                note(f"set aside until this ends: {service}")
            try:
                yield
            finally:
                if service is not None:
                    note(f"{', '.join(service.models)} is started again at {service.url}")


def _check_service(ready: Ready, paths: Paths) -> None:
    """Where both would have the same cards there is no room; elsewhere they only disturb each other."""
    service = running_service(paths)
    if service is None:
        return
    shared = service.shares(ready.base.gpus)
    if ready.terrain.ground.on_cpu or not shared:
        note(f"warning: {service}; what it is asked meanwhile slows down what is measured here")
        return
    hint = "--in-place stops it meanwhile and puts it back on any exit; --gpus takes others; or `skep down` first"
    raise EngineError(f"GPU {', '.join(map(str, shared))} is in use: {service}", hint=hint)


def check_bank(wishes: Wishes, paths: Paths) -> None:
    """A bank that cannot be had is told before anything is started."""
    if wishes.quality not in (NO_BANK, CHOSEN_BANK) and not wishes.simulate:
        guard_bank(wishes.quality, GuardPlan(1, items=wishes.quality_items or ITEMS), paths.cache)


@asynccontextmanager
async def bench_for(
    ready: Ready, tuning: Tuning, store: Store, paths: Paths, *, spent_s: float, rounds: int
) -> AsyncIterator[Bench]:
    """`spent_s` and `rounds`: of what was measured before it was taken up again."""
    if tuning.simulated:
        yield SimulatedBench(PlannedTruth(ready.terrain), seed=tuning.seed, together=False, began_s=spent_s)
        return
    host = read_host()
    async with AsyncExitStack() as stack:
        guard = await _guard(stack, ready, tuning, store, paths)
        meter = open_meter()
        if meter is not None:
            stack.callback(meter.close)
        work = paths.state / "tunings" / tuning.id
        work.mkdir(parents=True, exist_ok=True)
        progress = stack.enter_context(byte_progress("fetching the weights"))
        house = Tryout(paths, work, binary=ready.wishes.binary, progress=progress)
        base = ready.base
        tuned = Tuned(tuning.id, tuning.aim, tuning.seed, lambda config: turned(base, config), first_round=rounds)
        yield EngineBench(house, tuned, store, host, guard=guard, meter=meter)


async def _guard(
    stack: AsyncExitStack, ready: Ready, tuning: Tuning, store: Store, paths: Paths
) -> QualityGuard | None:
    wishes = ready.wishes
    if wishes.quality == NO_BANK:
        return None
    items = wishes.quality_items or ITEMS
    most_s = min(MOST_S, GUARD_SHARE * tuning.budget_s)
    plan = GuardPlan(tuning.aim.concurrency, items=items, seed=tuning.seed, tuning=tuning.id, most_s=most_s)
    name = USUAL_BANK if wishes.quality == CHOSEN_BANK else wishes.quality
    try:
        bank = guard_bank(name, plan, paths.cache)
        return await stack.enter_async_context(open_guard(bank, plan, store, read_host()))
    except UserError as error:
        if wishes.quality != CHOSEN_BANK:
            raise
        note(f"warning: answers are not guarded: {error.message}")
        return None
