"""A tuning as it runs and is stored: what is told and when, and that one broken off goes on where
it was.
"""

import asyncio

import pytest
from msgspec.structs import replace
from stored_search import BASELINE, NumberedBench, a_search, a_tuning

from skep import __version__
from skep.errors import StoreError, UserError
from skep.store.database import open_store
from skep.tuner.records import (
    BenchProgress,
    BenchRequest,
    BenchResult,
    MeasurementRound,
    MeasureRequest,
    TuneStage,
)
from skep.tuner.running import TuningJournal
from skep.tuner.search import KnobSearch
from skep.tuner.setup import TuningOptions, parse_goal
from skep.tuner.store import TuningState, TuningStore


@pytest.fixture
def tunings(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        yield TuningStore(store)


def now():
    return 1_794_752_600.0


@pytest.fixture
def begin(tunings):
    return lambda **changes: TuningJournal(tunings, tunings.begin(a_tuning(**changes)), now)


def go_on(journal, search=None, before=None, **options):
    """To its end."""
    search = search or a_search()
    with journal:
        spent_s = journal.replay(search)
        asyncio.run(
            journal.run(search, NumberedBench(len(journal.past), before, spent_s), **options)
        )
    return journal.tuning.id


def broken_off(journal, after=0):
    """By Ctrl-C, in the middle of a request, `after` so many in all."""

    async def before(number, _request):
        if number > after:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        go_on(journal, before=before)
    return journal.tuning.id


def what_came(tunings, name):
    """Figures but for their last digits: virtual time is added up in another order."""
    stages = []
    for stage in tunings.stages(name):
        if stage.figure is None:
            figure = None
        else:
            figure = round(stage.figure.estimate, 6)
        stages.append(
            (stage.title, stage.config, stage.decision, figure, stage.starts, stage.readings)
        )
    return stages, [request for request, _ in tunings.answers(name)]


def test_search_broken_off_in_every_request_ends_as_one_that_was_not(tunings, begin):
    whole = tunings.find(go_on(begin()))
    name = broken_off(begin())
    for done in range(1, whole.answers):
        broken_off(TuningJournal(tunings, name, now), done)
        record = tunings.find(name)
        assert (record.state, record.answers, record.reason) == (
            TuningState.INTERRUPTED,
            done,
            None,
        )
    go_on(TuningJournal(tunings, name, now))
    ended = tunings.find(name)
    assert (ended.state, ended.sessions) == (TuningState.ENDED, whole.answers + 1)
    assert what_came(tunings, name) == what_came(tunings, whole.id)
    assert ended.measured_s == pytest.approx(whole.measured_s)


def test_other_search_is_not_given_anothers_answers(tunings, begin):
    """One line, and what was stored is as it was."""
    name = broken_off(begin(skep_version="0.0.9"), 4)
    before = what_came(tunings, name)
    message = (
        r"was started by skep 0\.0\.9 and cannot go on: `the baseline, start 1` is not what "
        r"would be asked for now"
    )
    with pytest.raises(UserError, match=message):
        go_on(TuningJournal(tunings, name, now), a_search(BASELINE.turned({"slots": 2})))
    assert what_came(tunings, name) == before
    assert "cannot go on" in tunings.find(name).reason
    go_on(TuningJournal(tunings, name, now))


def test_search_that_decides_otherwise_is_found_out(tunings, begin):
    """It asks for the same things and makes other stages of the answers."""

    class Contrary(KnobSearch):
        def _note(self, trial, decision, why, failure=None):
            super()._note(trial, decision, why, failure)
            self.stages[-1] = replace(self.stages[-1], readings=99)

    name = broken_off(begin(skep_version=__version__), 2)
    message = r"cannot go on: step 0, `baseline`, would be decided otherwise now"
    with pytest.raises(UserError, match=message):
        go_on(TuningJournal(tunings, name, now), a_search(kind=Contrary))


def test_a_search_that_says_the_same_in_other_words_goes_on(tunings, begin):
    """Words of a step may change with a version of skep; what was decided does not."""

    class Reworded(KnobSearch):
        def _note(self, trial, decision, why, failure=None):
            super()._note(trial, decision, f"{why}, in other words", failure)

    name = broken_off(begin(skep_version=__version__), 2)
    go_on(TuningJournal(tunings, name, now), a_search(kind=Reworded))


def test_session_left_by_an_error_says_it(tunings, begin):
    """The reason is the first error's own, and Ctrl-C is none."""
    with pytest.raises(ExceptionGroup), begin():
        raise ExceptionGroup("of tasks", [StoreError("the disk is full")])
    assert tunings.find("last").reason == "the disk is full"
    with pytest.raises(KeyboardInterrupt), TuningJournal(tunings, "last", now):
        raise KeyboardInterrupt
    record = tunings.find("last")
    assert (record.reason, record.sessions, record.state) == (None, 2, TuningState.INTERRUPTED)


def test_who_watches_is_told_what_is_stored_already(tunings, begin):
    """A stage is told after it is in the file, and once."""
    events = []

    def of(kind):
        return [event for event in events if isinstance(event, kind)]

    def on_event(event):
        events.append(event)
        if isinstance(event, TuneStage):
            assert event in tunings.stages(tunings.find("last").id)
        if isinstance(event, BenchResult):
            assert tunings.find("last").answers == len(of(BenchResult))

    go_on(begin(), on_event=on_event)
    record = tunings.record("last")
    assert [type(events[0]), type(events[1])] == [MeasureRequest, BenchProgress]
    assert isinstance(of(BenchResult)[0], MeasurementRound)
    assert (len(of(BenchRequest)), len(of(BenchResult))) == (record.answers, record.answers)
    assert tuple(of(TuneStage)) == record.stages
    assert record.measured_s == pytest.approx(
        sum(answer.seconds for _, answer in tunings.answers(record.id))
    )


@pytest.mark.parametrize("text", ["task_tok_s@1", " task-tok-s @ 1 ", "TASK_TOK_S@1"])
def test_a_goal_names_a_metric_and_a_number_of_agents(text):
    aim = parse_goal(TuningOptions("m", text, slo="ttft=1s", min_context=16384))
    assert (aim.metric, aim.concurrency) == ("task_tok_s", 1)
    assert (str(aim), aim.slo, aim.min_context) == ("task_tok_s@1", "ttft_p95=1000ms", 16384)
