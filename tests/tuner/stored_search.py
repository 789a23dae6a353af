"""A tuning of three knobs to be stored, its search, and a bench in virtual time that can be held
up.
"""

from known_effects import KnownEffects

from skep.tuner.records import ConfigFailure, Knob, KnobConfig, TuneGoal, TuneReading, Tuning
from skep.tuner.search import KnobSearch
from skep.tuner.simulated import SimulatedBench

AT = 1_794_752_553.25  # 2026-11-15 14:22:33 UTC
KNOBS = (
    Knob("graphs", "graphs", (False, True), expected=0.3),
    Knob("kv", "KV type", ("auto", "fp8"), alters_answers=True, expected=0.1),
    Knob("slots", "slots", (1, 2, 4, 8, 16), ordered=True, expected=0.2),
)
BASELINE = KnobConfig.of({"graphs": False, "kv": "auto", "slots": 1})
OUT_OF_MEMORY = ConfigFailure("out-of-memory", "no room", "CUDA out of memory", "fewer slots")
SHARES = {1: 0.2, 2: 0.36, 4: 0.6, 8: 0.66, 16: 0.5}


def a_tuning(**changes) -> Tuning:
    values = {
        "id": "",
        "created_at": AT,
        "model": "smol",
        "engine": "vllm",
        "rig": "rtx-3090",
        "aim": TuneGoal("effective_tok_s", 4),
        "budget_s": 3 * 3600.0,
        "seed": 3,
        "simulated": True,
        "baseline": BASELINE,
        "knobs": KNOBS,
        "base": {"model": "smol"},
        "host": {"cpu_cores": 2},
        "skep_version": "0.0.0",
    }
    return Tuning(**values | changes)


class Played(KnownEffects):
    """What is foreseen is what is there, but that fp8 with 16 slots has no memory for it."""

    def figure(self, config):
        if (config["kv"], config["slots"]) == ("fp8", 16):
            return OUT_OF_MEMORY
        speed = self.truth(config)
        return TuneReading(speed, speed, speed / 4, 90.0, 20.0, 10.0, 12)

    def at(self, config, _concurrency):
        return self.figure(config)


def played():
    effects = {"slots": SHARES, "graphs": {True: 1.4}, "kv": {"fp8": 1.05}}
    return Played(KNOBS, effects, foreseen=effects, pairs=(("kv", "slots"),))


def a_search(baseline=BASELINE, kind=KnobSearch):
    return kind(played(), baseline, a_tuning().aim, budget_s=a_tuning().budget_s)


class NumberedBench(SimulatedBench):
    """`before(number, request)` is awaited before a request is answered; numbers go on from what
    was answered.
    """

    def __init__(self, answered=0, before=None, now_s=0.0):
        super().__init__(played(), seed=3, now_s=now_s)
        self.number = answered
        self._before = before

    async def measure(self, request, on_progress):
        await self._begun(request)
        return await super().measure(request, on_progress)

    async def judge(self, request, on_progress):
        await self._begun(request)
        return await super().judge(request, on_progress)

    async def _begun(self, request):
        self.number += 1
        if self._before is not None:
            await self._before(self.number, request)
