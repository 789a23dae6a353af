"""A tuning that is broken off goes on where it was: nothing is asked twice, nothing is decided otherwise."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_search import SLOTS, NumberedBench, SmallSearch, a_tuning

from skep import __version__
from skep.errors import StoreError, UserError
from skep.store.database import open_store
from skep.tuner.documents import curve_of
from skep.tuner.journal import TuningJournal
from skep.tuner.running import replay_answers, run_search
from skep.tuner.store import TuningState, TuningStore

PROCESS = Path(__file__).with_name("search_process.py")


@pytest.fixture
def tunings(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        yield TuningStore(store)


def clock():
    return 1_794_752_600.0


def unbroken(tunings) -> str:
    journal = TuningJournal.begin(tunings, a_tuning(), clock)
    asyncio.run(run_search(SmallSearch(), NumberedBench(), journal))
    return journal.tuning.id


def go_on(tunings, name, search=None, **changes):
    """In this process, to its end."""
    search = search or SmallSearch()
    with TuningJournal.resume(tunings, name, clock) as journal:
        replay_answers(journal, search)
        return asyncio.run(run_search(search, NumberedBench(len(journal.past), **changes), journal))


def broken_off(tunings, name, after: int) -> None:
    """By Ctrl-C, in the middle of an request."""

    async def before(number, _request):
        if number > after:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        go_on(tunings, name, before=before)


def what_came(tunings, name):
    answers = [(one.number, one.kind, one.errand, one.answer) for one in tunings.answers(name)]
    return tunings.stages(name), answers, curve_of(tunings.answers(name))


@contextmanager
def search_process(path, name: str, *, freely: bool = False):
    command = [sys.executable, str(PROCESS), str(path), name, *(["freely"] if freely else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def killed_in(process, requests: int) -> list[int]:
    """The numbers of the requests it began; it is killed in the middle of the last."""
    begun = []
    for left in range(requests, 0, -1):
        begun.append(int(process.stdout.readline()))
        if left > 1:
            process.stdin.write("\n")
            process.stdin.flush()
    process.kill()
    process.wait()
    return begun


def test_killed_search_redoes_only_the_request_that_was_under_way(tunings, tmp_path):
    """Killed three times, twice in the middle of an request and once anywhere, it ends as if nothing had been."""
    path = tmp_path / "skep.sqlite3"
    with search_process(path, "new") as (process, name):
        assert tunings.state(name) is TuningState.RUNNING
        with pytest.raises(UserError, match="a process is at work"):
            TuningJournal.resume(tunings, name, clock)
        with pytest.raises(UserError, match="a process is at work"):
            tunings.delete([name])
        assert killed_in(process, 3) == [1, 2, 3]
    assert tunings.state(name) is TuningState.INTERRUPTED
    with search_process(path, name) as (process, _):
        assert killed_in(process, 2) == [3, 4]
    with search_process(path, name, freely=True) as (process, _):
        assert killed_in(process, 1) == [4]
    if tunings.state(name) is TuningState.INTERRUPTED:  # else it was at its end before the kill
        go_on(tunings, name)
    assert what_came(tunings, name) == what_came(tunings, unbroken(tunings))
    kept = tunings.find(name)
    assert (kept.state, kept.reason) == (TuningState.ENDED, "all was tried")


@pytest.mark.parametrize("after", range(7))
def test_interrupted_search_goes_on_where_it_was(tunings, after):
    """Wherever it is broken off, also between a measurement and the look at the answers that belongs to it."""
    with TuningJournal.begin(tunings, a_tuning(), clock) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, after)
    kept = tunings.find(name)
    assert (kept.state, kept.answers, kept.error) == (TuningState.INTERRUPTED, after, None)
    broken_off(tunings, name, after)
    assert tunings.find(name).answers == after
    go_on(tunings, name)
    assert what_came(tunings, name) == what_came(tunings, unbroken(tunings))


def test_other_search_is_not_given_anothers_answers(tunings):
    """One line, and what was stored is as it was."""
    with TuningJournal.begin(tunings, a_tuning(skep_version="0.0.9"), clock) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 4)
    before = what_came(tunings, name)
    with pytest.raises(
        UserError, match=r"was begun by skep 0\.0\.9, which searches differently \(request 2 was `slots 2`"
    ):
        go_on(tunings, name, SmallSearch((1, 32, 2)))
    assert what_came(tunings, name) == before
    assert "searches differently" in tunings.find(name).error
    go_on(tunings, name)


def test_search_that_decides_otherwise_is_found_out(tunings):
    """It asks for the same things and makes other stages of the answers."""

    class Contrary(SmallSearch):
        def _stage(self, config, decision, why, **more):
            super()._stage(config, decision, f"{why} otherwise", **more)

    with TuningJournal.begin(tunings, a_tuning(skep_version=__version__), clock) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 2)
    with pytest.raises(
        UserError, match=r"cannot go on: it was begun on other terms \(stage 0 was `baseline`: baseline\)"
    ):
        go_on(tunings, name, Contrary())


def test_search_that_has_ended_takes_no_more(tunings):
    name = unbroken(tunings)
    with pytest.raises(UserError, match=f"tuning `{name}` has ended"):
        TuningJournal.resume(tunings, name, clock)


def test_stage_that_was_decided_before_the_kill_is_not_decided_twice(tunings):
    """The search decides one before it asks for the next thing; killed there, it makes it again of the same answers."""
    with TuningJournal.begin(tunings, a_tuning(), clock) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 4)  # the refused one is stored, the request after it is not answered
    assert [stage.why for stage in tunings.stages(name)][-1] == "refused"
    with TuningJournal.resume(tunings, name, clock) as journal:
        search = SmallSearch()
        replay_answers(journal, search)
        assert len(search.stages) == len(journal.stages) - 1
        search.following()
        assert journal.decided(search.stages) == ()
    go_on(tunings, name)
    assert [stage.number for stage in tunings.stages(name)] == list(range(len(SLOTS)))


def test_session_left_by_an_error_says_it(tunings):
    """The reason is the first error's own, and Ctrl-C is none."""
    with pytest.raises(ExceptionGroup), TuningJournal.begin(tunings, a_tuning(), clock):
        raise ExceptionGroup("of tasks", [StoreError("the disk is full")])
    assert tunings.find("last").error == "the disk is full"
    with pytest.raises(KeyboardInterrupt), TuningJournal.resume(tunings, "last", clock):
        raise KeyboardInterrupt
    kept = tunings.find("last")
    assert (kept.error, kept.sessions, kept.state) == (None, 2, TuningState.INTERRUPTED)
