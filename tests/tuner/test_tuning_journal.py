"""A tuning as it runs and is stored: what is told and when, and that one broken off goes on where it was."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from known_effects import KnownEffects
from msgspec.structs import replace
from small_search import BASELINE, SLOTS, NumberedBench, SmallSearch, a_tuning

from skep import __version__
from skep.errors import EngineError, StoreError, UserError
from skep.store.database import open_store
from skep.tuner.records import (
    BenchProgress,
    BenchRequest,
    BenchResult,
    ConfigFailure,
    Knob,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    StageDecision,
    TuneReading,
    TuneStage,
)
from skep.tuner.running import TuningJournal, replay_answers, run_search
from skep.tuner.search import KnobSearch
from skep.tuner.setup import TuningOptions, parse_goal
from skep.tuner.simulated import SimulatedBench
from skep.tuner.store import TuningState, TuningStore

PROCESS = Path(__file__).with_name("search_process.py")


@pytest.fixture
def tunings(tmp_path):
    with open_store(tmp_path / "skep.sqlite3") as store:
        yield TuningStore(store)


def now():
    return 1_794_752_600.0


def unbroken(tunings) -> str:
    journal = TuningJournal.begin(tunings, a_tuning(), now)
    asyncio.run(run_search(SmallSearch(), NumberedBench(), journal))
    return journal.tuning.id


def go_on(tunings, name, search=None, **changes):
    """In this process, to its end."""
    search = search or SmallSearch()
    with TuningJournal.resume(tunings, name, now) as journal:
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
    answers = [(one.number, one.kind, one.request, one.answer) for one in tunings.answers(name)]
    return tunings.stages(name), answers, tunings.record(name).curve


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
        assert tunings.find(name).state is TuningState.RUNNING
        with pytest.raises(UserError, match="a process is working"):
            TuningJournal.resume(tunings, name, now)
        with pytest.raises(UserError, match="a process is working"):
            tunings.delete([name])
        assert killed_in(process, 3) == [1, 2, 3]
    assert tunings.find(name).state is TuningState.INTERRUPTED
    with search_process(path, name) as (process, _):
        assert killed_in(process, 2) == [3, 4]
    with search_process(path, name, freely=True) as (process, _):
        assert killed_in(process, 1) == [4]
    if tunings.find(name).state is TuningState.INTERRUPTED:  # else it was at its end before the kill
        go_on(tunings, name)
    assert what_came(tunings, name) == what_came(tunings, unbroken(tunings))
    kept = tunings.find(name)
    assert (kept.state, kept.reason) == (TuningState.ENDED, "all was tried")
    with pytest.raises(UserError, match=f"tuning `{name}` has ended"):
        TuningJournal.resume(tunings, name, now)


@pytest.mark.parametrize("after", range(7))
def test_interrupted_search_goes_on_where_it_was(tunings, after):
    """Wherever it is broken off, also between a measurement and the look at the answers that belongs to it."""
    with TuningJournal.begin(tunings, a_tuning(), now) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, after)
    kept = tunings.find(name)
    assert (kept.state, kept.answers, kept.reason) == (TuningState.INTERRUPTED, after, None)
    broken_off(tunings, name, after)
    assert tunings.find(name).answers == after
    go_on(tunings, name)
    assert what_came(tunings, name) == what_came(tunings, unbroken(tunings))


def test_other_search_is_not_given_anothers_answers(tunings):
    """One line, and what was stored is as it was."""
    with TuningJournal.begin(tunings, a_tuning(skep_version="0.0.9"), now) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 4)
    before = what_came(tunings, name)
    with pytest.raises(
        UserError, match=r"was started by skep 0\.0\.9, which searches differently \(request 2 was `slots 2`"
    ):
        go_on(tunings, name, SmallSearch((1, 32, 2)))
    assert what_came(tunings, name) == before
    assert "searches differently" in tunings.find(name).reason
    go_on(tunings, name)


def test_search_that_decides_otherwise_is_found_out(tunings):
    """It asks for the same things and makes other stages of the answers."""

    class Contrary(SmallSearch):
        def _stage(self, config, decision, why, **more):
            super()._stage(config, decision, f"{why} otherwise", **more)

    with TuningJournal.begin(tunings, a_tuning(skep_version=__version__), now) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 2)
    with pytest.raises(
        UserError, match=r"cannot go on: it was started with other settings \(step 0 was `baseline`: baseline\)"
    ):
        go_on(tunings, name, Contrary())


def test_stage_that_was_decided_before_the_kill_is_not_decided_twice(tunings):
    """The search decides one before it asks for the next thing; killed there, it makes it again of the same answers."""
    with TuningJournal.begin(tunings, a_tuning(), now) as journal:
        name = journal.tuning.id
    broken_off(tunings, name, 4)  # the refused one is stored, the request after it is not answered
    assert [stage.why for stage in tunings.stages(name)][-1] == "refused"
    with TuningJournal.resume(tunings, name, now) as journal:
        search = SmallSearch()
        replay_answers(journal, search)
        assert len(search.stages) == len(journal.stages) - 1
        search.following()
        assert journal.decided(search.stages) == ()
    go_on(tunings, name)
    assert [stage.number for stage in tunings.stages(name)] == list(range(len(SLOTS)))


def test_session_left_by_an_error_says_it(tunings):
    """The reason is the first error's own, and Ctrl-C is none."""
    with pytest.raises(ExceptionGroup), TuningJournal.begin(tunings, a_tuning(), now):
        raise ExceptionGroup("of tasks", [StoreError("the disk is full")])
    assert tunings.find("last").reason == "the disk is full"
    with pytest.raises(KeyboardInterrupt), TuningJournal.resume(tunings, "last", now):
        raise KeyboardInterrupt
    kept = tunings.find("last")
    assert (kept.reason, kept.sessions, kept.state) == (None, 2, TuningState.INTERRUPTED)


def search_now(*parts, **options):
    return asyncio.run(run_search(*parts, **options))


@pytest.fixture
def journal(tunings):
    return TuningJournal.begin(tunings, a_tuning(), now)


def test_search_goes_on_until_nothing_is_asked(journal, tunings):
    """What was decided is stored, and the best is the last that was accepted."""
    search = SmallSearch()
    search_now(search, NumberedBench(), journal)
    found = tunings.record("last")
    assert journal.stages == found.stages
    assert [stage.decision.value for stage in found.stages] == [
        "baseline", "accepted", "accepted", "failed", "failed", "worse"
    ]  # fmt: skip
    assert search.incumbent == BASELINE.turned({"slots": 4})
    assert len(found.points) == 4
    kept = tunings.find("last")
    assert (kept.state, kept.answers) == (TuningState.ENDED, 7)
    spent_s = sum(one.seconds for one in tunings.answers(kept.id))
    assert kept.measured_s == pytest.approx(spent_s)


def test_who_watches_is_told_what_is_stored_already(journal, tunings):
    """A stage is told after it is in the file, and once."""
    told = []

    def count(kind):
        return sum(isinstance(event, kind) for event in told)

    def on_event(event):
        told.append(event)
        if isinstance(event, TuneStage):
            assert tunings.stages(journal.tuning.id)[-1] == event or event.decision is StageDecision.FAILED
        if isinstance(event, BenchResult):
            assert tunings.find("last").answers == count(BenchResult)

    search_now(SmallSearch(), NumberedBench(), journal, on_event=on_event)
    assert [type(event) for event in told[:4]] == [MeasureRequest, BenchProgress, MeasurementRound, TuneStage]
    assert (count(BenchRequest), count(BenchResult), count(TuneStage)) == (7, 7, 6)


def test_request_that_never_ends_is_broken_off(journal, tunings, monkeypatch):
    """The bench should have seen that it hangs; whoever waits in front of it is told in any case."""

    async def before(number, _request):
        if number == 2:
            await asyncio.Event().wait()

    monkeypatch.setattr("skep.tuner.running.SHORTEST_LIMIT_S", 0.05)
    journal.tuning = replace(journal.tuning, budget_s=0.05)
    with pytest.raises(EngineError, match="`slots 2` was stopped after"):
        search_now(SmallSearch(), NumberedBench(before=before), journal)
    kept = tunings.find("last")
    assert (kept.state, kept.answers) == (TuningState.INTERRUPTED, 1)
    assert "was stopped after" in kept.reason


def test_timeout_of_the_bench_itself_stays_its_own(journal):
    async def before(number, _request):
        raise TimeoutError("the engine did not answer")

    with pytest.raises(TimeoutError, match="did not answer"):
        search_now(SmallSearch(), NumberedBench(before=before), journal)


THREE_KNOBS = (
    Knob("graphs", "graphs", (False, True), expected=0.3),
    Knob("kv", "KV type", ("auto", "fp8"), alters_answers=True, expected=0.1),
    Knob("slots", "slots", (1, 2, 4, 8, 16), ordered=True, expected=0.2),
)
FIRST = KnobConfig.of({"graphs": False, "kv": "auto", "slots": 1})
SHARES = {1: 0.2, 2: 0.36, 4: 0.6, 8: 0.66, 16: 0.5}


class Played(KnownEffects):
    """What is foreseen is what is there, but that fp8 with 16 slots has no memory for it."""

    def predict(self, config):
        return self.truth(config)

    def figure(self, config):
        if (config["kv"], config["slots"]) == ("fp8", 16):
            return ConfigFailure("out-of-memory", "no room", "CUDA out of memory")
        speed = self.truth(config)
        return TuneReading(speed, speed, speed / 4, 90.0, 20.0, 10.0, 12)

    def at(self, config, _concurrency):
        return self.figure(config)


def played():
    effects = {"slots": SHARES, "graphs": {True: 1.4}, "kv": {"fp8": 1.05}}
    return Played(THREE_KNOBS, effects, pairs=(("kv", "slots"),))


def session(journal, *, requests: int | None = None):
    """So many requests, the next of which is broken off; None: to the end."""
    tuning = journal.tuning
    search = KnobSearch(played(), tuning.baseline, tuning.aim, budget_s=tuning.budget_s)
    left = iter(range(requests)) if requests is not None else None

    class Breaking(SimulatedBench):
        async def measure(self, request, on_progress):
            if left is not None and next(left, None) is None:
                raise asyncio.CancelledError
            return await super().measure(request, on_progress)

    with journal:
        bench = Breaking(played(), seed=tuning.seed, now_s=replay_answers(journal, search))
        asyncio.run(run_search(search, bench, journal))


def told(tunings, name):
    """Figures but for their last digits: virtual time is added up in another order."""
    rounded = []
    for one in tunings.stages(name):
        figure = None if one.figure is None else round(one.figure.estimate, 6)
        rounded.append((one.title, one.config, one.decision, figure, one.starts, one.readings))
    return rounded


def test_search_broken_off_in_every_request_ends_as_one_that_was_not(tmp_path):
    tuning = a_tuning(baseline=FIRST, knobs=THREE_KNOBS, budget_s=3 * 3600.0)
    with open_store(tmp_path / "skep.sqlite3") as store:
        tunings = TuningStore(store)
        whole = TuningJournal.begin(tunings, tuning, lambda: 0.0)
        session(whole)
        broken = TuningJournal.begin(tunings, replace(tuning, created_at=tuning.created_at + 1), lambda: 0.0)
        name = broken.tuning.id
        while tunings.find(name).state is not TuningState.ENDED:
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


def test_a_goal_names_a_metric_and_a_number_of_agents():
    aim = parse_goal(TuningOptions("m", slo="ttft=1s", min_context=16384))
    assert (aim.metric, aim.concurrency, aim.target) == ("effective_tok_s", 4, None)
    assert (aim.slo, aim.min_context) == ("ttft_p95=1000ms", 16384)
    assert str(aim) == "effective_tok_s@4"


@pytest.mark.parametrize("text", ["task_tok_s@1>=90", " task-tok-s @ 1 >= 90 ", "TASK_TOK_S@1>=90.0"])
def test_a_target_ends_the_search(text):
    aim = parse_goal(TuningOptions("m", text))
    assert (aim.metric, aim.concurrency, aim.target) == ("task_tok_s", 1, 90.0)
    assert parse_goal(TuningOptions("m", str(aim))) == aim


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("efective_tok_s@4", "no metric is called `efective_tok_s`", "did you mean `effective_tok_s`?"),
        ("speed@4", "no metric is called `speed`", "known: effective_tok_s, task_tok_s, tok_per_joule"),
        ("effective_tok_s", "does not say at how many agents", "--goal"),
        ("effective_tok_s@", "does not say at how many agents", "--goal"),
        ("effective_tok_s@four", "`four` is not a number of agents", "--goal"),
        ("effective_tok_s@-1", "`-1` is not a number of agents", "--goal"),
        ("effective_tok_s@0", "0 agents cannot be measured", "1 to 4096"),
        ("effective_tok_s@4097", "4097 agents cannot be measured", "1 to 4096"),
        ("effective_tok_s@99999999999999999999", "cannot be measured", "1 to 4096"),
        ("effective_tok_s@4>=0", "a target of 0 is not possible", "above 0"),
        ("effective_tok_s@4>=-3", "a target of -3 is not possible", "above 0"),
        ("effective_tok_s@4>=nan", "a target of nan is not possible", "above 0"),
        ("effective_tok_s@4>=fast", "`fast` is not a target", "--goal"),
        ("", "is not understood", "--goal"),
        ("@4", "is not understood", "--goal"),
        ("effective_tok_s@4<=9", "is not understood", "--goal"),
    ],
)
def test_a_goal_that_cannot_be_meant_is_refused_in_one_line(text, said, hint):
    with pytest.raises(UserError) as caught:
        parse_goal(TuningOptions("m", text))
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"output_tokens": 2}, "--output-tokens 2 is too short an answer"),
        ({"input_tokens": 0}, "--prompt-tokens 0 is too short a prompt"),
        ({"min_context": 639}, "--min-context 639 is less than a task's 640 tokens"),
        ({"slo": "ttft"}, "--slo `ttft`"),
        ({"slo": "ttft=0s"}, "cannot be met"),
    ],
)
def test_a_load_that_cannot_be_measured_is_refused(flags, said):
    with pytest.raises(UserError, match=said):
        parse_goal(TuningOptions("m", **flags))
