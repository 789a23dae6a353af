"""The real search on a rig in virtual time, broken off in every request and taken up again each time."""

import asyncio
from dataclasses import replace

import pytest
from small_search import a_tuning

from skep.store.database import open_store
from skep.tuner.journal import TuningJournal
from skep.tuner.records import ConfigFailure, Knob, KnobConfig, TuneReading
from skep.tuner.running import replay_answers, run_search
from skep.tuner.search import KnobSearch
from skep.tuner.simulated import SimulatedBench
from skep.tuner.store import TuningState, TuningStore

KNOBS = (
    Knob("graphs", "graphs", (False, True), expected=0.3),
    Knob("kv", "KV type", ("auto", "fp8"), alters_answers=True, expected=0.1),
    Knob("slots", "slots", (1, 2, 4, 8, 16), ordered=True, expected=0.2),
)
BASELINE = KnobConfig.of({"graphs": False, "kv": "auto", "slots": 1})
SPEED = {1: 20.0, 2: 36.0, 4: 60.0, 8: 66.0, 16: 50.0}


class OneEffect:
    """Terrain and truth at once: what is foreseen is what is there, but that fp8 with 16 slots has no room."""

    knobs = KNOBS
    pairs = (("kv", "slots"),)

    def refusal(self, config):  # noqa: ARG002
        return None

    def predict(self, config):
        return SPEED[config["slots"]] * (1.4 if config["graphs"] else 1.0) * (1.05 if config["kv"] == "fp8" else 1.0)

    def start_s(self, config):  # noqa: ARG002
        return 30.0

    def reading_s(self, config):  # noqa: ARG002
        return 10.0

    def figure(self, config):
        if (config["kv"], config["slots"]) == ("fp8", 16):
            return ConfigFailure("out-of-memory", "no room", "CUDA out of memory")
        speed = self.predict(config)
        return TuneReading(speed, speed, speed / 4, 90.0, 20.0, 10.0, 12)

    def dies(self, config):  # noqa: ARG002
        return None

    def at(self, config, concurrency):  # noqa: ARG002
        return self.figure(config)


def session(journal, *, requests: int | None = None):
    """So many requests, the next of which is broken off; None: to the end."""
    tuning = journal.tuning
    search = KnobSearch(OneEffect(), tuning.baseline, tuning.aim, budget_s=tuning.budget_s)
    left = iter(range(requests)) if requests is not None else None

    class Breaking(SimulatedBench):
        async def measure(self, request, on_progress):
            if left is not None and next(left, None) is None:
                raise asyncio.CancelledError
            return await super().measure(request, on_progress)

    with journal:
        bench = Breaking(OneEffect(), seed=tuning.seed, began_s=replay_answers(journal, search))
        asyncio.run(run_search(search, bench, journal))


def told(tunings, name):
    """Figures but for their last digits: virtual time is added up in another order."""
    rounded = []
    for one in tunings.stages(name):
        figure = None if one.figure is None else round(one.figure.estimate, 6)
        rounded.append((one.title, one.config, one.decision, figure, one.starts, one.readings))
    return rounded


def test_search_broken_off_in_every_request_ends_as_one_that_was_not(tmp_path):
    tuning = a_tuning(baseline=BASELINE, knobs=KNOBS, budget_s=3 * 3600.0)
    with open_store(tmp_path / "skep.sqlite3") as store:
        tunings = TuningStore(store)
        whole = TuningJournal.begin(tunings, tuning, lambda: 0.0)
        session(whole)
        broken = TuningJournal.begin(tunings, replace(tuning, created_at=tuning.created_at + 1), lambda: 0.0)
        name = broken.tuning.id
        while tunings.state(name) is not TuningState.ENDED:
            before = tunings.find(name).answers
            try:
                session(broken, requests=1)
            except asyncio.CancelledError:
                assert tunings.find(name).answers > before
                broken = TuningJournal.resume(tunings, name, lambda: 0.0)
        assert tunings.find(name).sessions > 5
        assert told(tunings, name) == told(tunings, whole.tuning.id)
        assert tunings.find(name).answers == tunings.find(whole.tuning.id).answers
        assert tunings.find(name).measured_s == pytest.approx(tunings.find(whole.tuning.id).measured_s)
