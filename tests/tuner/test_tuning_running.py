"""The loop between search and bench: what is told, what is stored when, and how it ends."""

import asyncio

import pytest
from small_search import BASELINE, NumberedBench, SmallSearch, a_tuning

from skep.errors import EngineError
from skep.store.database import open_store
from skep.tuner.journal import TuningJournal
from skep.tuner.ports import BenchProgress
from skep.tuner.records import StageDecision
from skep.tuner.running import RequestFinished, RequestStarted, StageDecided, run_search
from skep.tuner.store import TuningState, TuningStore


@pytest.fixture
def tunings(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        yield TuningStore(store)


def search_now(*parts, **options):
    return asyncio.run(run_search(*parts, **options))


@pytest.fixture
def journal(tunings):
    return TuningJournal.begin(tunings, a_tuning(), lambda: 1_794_752_600.0)


def test_search_goes_on_until_nothing_is_asked(journal, tunings):
    """What comes back is what is stored, and the best is the last that was accepted."""
    outcome = search_now(SmallSearch(), NumberedBench(), journal)
    assert list(outcome.stages) == tunings.stages(outcome.tuning.id)
    assert [stage.decision.value for stage in outcome.stages] == [
        "baseline", "accepted", "accepted", "failed", "failed", "worse"
    ]  # fmt: skip
    assert outcome.best == BASELINE.turned({"slots": 4})
    assert len(outcome.curve.points) == 4
    kept = tunings.find("last")
    assert (kept.state, kept.answers, kept.stages) == (TuningState.ENDED, 7, 6)
    spent_s = sum(one.seconds for one in tunings.answers(kept.id))
    assert kept.measured_s == pytest.approx(spent_s)


def test_who_watches_is_told_what_is_stored_already(journal, tunings):
    """A stage is told after it is in the file, and once."""
    told = []

    def on_event(event):
        told.append(type(event))
        if isinstance(event, StageDecided):
            assert tunings.stages(journal.tuning.id)[-1] == event.stage or event.stage.decision is StageDecision.FAILED
        if isinstance(event, RequestFinished):
            assert tunings.find("last").answers == told.count(RequestFinished)

    search_now(SmallSearch(), NumberedBench(), journal, on_event=on_event)
    assert told[:4] == [RequestStarted, BenchProgress, RequestFinished, StageDecided]
    assert (told.count(RequestStarted), told.count(RequestFinished), told.count(StageDecided)) == (7, 7, 6)


def test_cancelled_search_keeps_what_was_decided(journal, tunings):
    """The request under way leaves nothing; the best so far is known to who cancelled it."""
    search = SmallSearch()

    async def broken_off():
        reached = asyncio.Event()

        async def before(number, _request):
            if number == 3:
                reached.set()
                await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(run_search(search, NumberedBench(before=before), journal))
            await reached.wait()
            task.cancel()
        return task.cancelled()

    assert asyncio.run(broken_off())
    assert (search.incumbent["slots"], len(journal.stages)) == (2, 2)
    kept = tunings.find("last")
    assert (kept.state, kept.answers, kept.error) == (TuningState.INTERRUPTED, 2, None)


def test_request_that_never_ends_is_broken_off(journal, tunings):
    """The bench should have seen that it hangs; whoever waits in front of it is told in any case."""

    async def before(number, _request):
        if number == 2:
            await asyncio.Event().wait()

    with pytest.raises(EngineError, match=r"`slots 2` \(2 readings of \w+, \w+\) was broken off after"):
        search_now(SmallSearch(), NumberedBench(before=before), journal, longest_s=0.05)
    kept = tunings.find("last")
    assert (kept.state, kept.answers) == (TuningState.INTERRUPTED, 1)
    assert "broken off" in kept.error


def test_timeout_of_the_bench_itself_stays_its_own(journal):
    async def before(number, _request):
        raise TimeoutError("the engine did not answer")

    with pytest.raises(TimeoutError, match="did not answer"):
        search_now(SmallSearch(), NumberedBench(before=before), journal)
