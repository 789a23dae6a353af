"""The journal of the tuner: rows are final, one process writes, an answer is stored with its
stages or not at all.
"""

import sqlite3

import pytest

from skep.errors import StoreError, UserError
from skep.store.database import open_store
from skep.store.rows import WriterProcess
from skep.swarm.store import SwarmStore
from skep.tuner.records import (
    ConfigFailure,
    JudgeRequest,
    JudgeResult,
    Knob,
    KnobChange,
    KnobConfig,
    MeasurementRound,
    MeasureRequest,
    StageDecision,
    TuneGoal,
    TuneStage,
    Tuning,
)
from skep.tuner.store import TUNINGS, TuningState, TuningStore
from skep.units import Interval

AT = 1_794_752_553.25  # 2026-11-15 14:22:33 UTC
BASELINE = KnobConfig.of({"graphs": False, "slots": 4})
GRAPHS = BASELINE.turned({"graphs": True})


@pytest.fixture
def tunings(store):
    return TuningStore(store)


def a_tuning(**changes) -> Tuning:
    values = {
        "id": "",
        "created_at": AT,
        "model": "smol",
        "engine": "vllm",
        "rig": "rtx-3090",
        "aim": TuneGoal("effective_tok_s", 4, slo="ttft=1s"),
        "budget_s": 7200.0,
        "seed": 0,
        "simulated": False,
        "baseline": BASELINE,
        "knobs": (Knob("graphs", "CUDA graphs", (False, True)),),
        "base": {"model": "smol"},
        "host": {"cpu_cores": 2},
        "skep_version": "0.1.0",
    }
    return Tuning(**values | changes)


def stage(
    number: int, decision: StageDecision = StageDecision.BASELINE, figure: float = 25.0, **changes
) -> TuneStage:
    values = {
        "changes": (),
        "config": BASELINE,
        "why": "so",
        "figure": Interval(figure - 1, figure, figure + 1),
    }
    return TuneStage(number=number, decision=decision, **values | changes)


def answer(number: int, judged: bool = False):
    if judged:
        return JudgeRequest(BASELINE, GRAPHS), JudgeResult(
            ok=True, words=f"answer {number}", seconds=40.0
        )
    return MeasureRequest((BASELINE,), number, "screen", "a look"), MeasurementRound((), 40.0)


def rows(store) -> dict[str, int]:
    return {
        table: store.read(f"SELECT count(*) FROM {table}")[0][0]
        for table in (*TUNINGS.parts, TUNINGS.table)
    }


def at_work(tunings) -> str:
    """Begin a tuning with its first session."""
    name = tunings.begin(a_tuning())
    tunings.begin_session(name, AT + 1)
    return name


def test_a_tuning_is_read_as_it_was_begun_with_answers_and_stages_in_order(tunings):
    """It has the id that the store gave it, and no process works on it yet."""
    name = tunings.begin(a_tuning())
    assert name.startswith("20261115-142233-")
    assert tunings.find(name).tuning == a_tuning(id=name)
    stored = tunings.find("last")
    assert (stored.id, stored.state, stored.sessions, stored.worked_at) == (
        name,
        TuningState.INTERRUPTED,
        0,
        AT,
    )
    name = at_work(tunings)
    baseline = stage(0)
    dead_end = stage(
        1,
        StageDecision.FAILED,
        figure=1.0,
        failure=ConfigFailure("hang", "it hung"),
        config=GRAPHS,
    )
    tunings.append(name, [baseline], AT + 1, answer(1))
    tunings.append(name, [dead_end], AT + 2)
    tunings.append(name, [], AT + 3, answer(2, judged=True))
    assert tunings.stages(name) == [baseline, dead_end]
    assert tunings.answers(name) == [answer(1), answer(2, judged=True)]
    stored = tunings.find(name)
    assert (stored.state, stored.answers, stored.measured_s) == (TuningState.RUNNING, 2, 80.0)


def test_answer_whose_stages_cannot_be_written_is_not_written(tunings, store):
    """If only the answer were stored, a resumed search would decide the same thing twice."""
    name = at_work(tunings)
    tunings.append(name, [stage(0)], AT + 1, answer(1))
    before = rows(store)
    with pytest.raises(StoreError, match="does not take this row"):
        tunings.append(name, [stage(1), stage(0)], AT + 2, answer(2))
    assert rows(store) == before


def test_state_is_that_of_the_last_session_and_one_process_works_at_a_time(tunings, monkeypatch):
    """Stopped, failed and killed tunings can go on; one that is done cannot."""
    name = at_work(tunings)
    with pytest.raises(UserError, match=f"a process is working on tuning `{name}`"):
        tunings.begin_session(name, AT + 2)
    tunings.end_session(name, 1, at=AT + 5, outcome="failed", reason="the disk is full")
    stored = tunings.find(name)
    assert (stored.state, stored.reason) == (TuningState.INTERRUPTED, "the disk is full")
    with monkeypatch.context() as process:
        process.setattr(
            "skep.tuner.store.this_process", lambda: WriterProcess(1, 1, "before the last boot")
        )
        tunings.begin_session(name, AT + 7)
    assert tunings.find(name).state is TuningState.INTERRUPTED
    third = tunings.begin_session(name, AT + 10)
    assert (third, tunings.find(name).state, tunings.find(name).worked_at) == (
        3,
        TuningState.RUNNING,
        AT + 10,
    )
    tunings.end_session(name, third, at=AT + 20, outcome="done", reason="the budget is spent")
    stored = tunings.find(name)
    assert (stored.state, stored.reason) == (TuningState.ENDED, "the budget is spent")


def test_ended_tuning_takes_no_more(tunings):
    """Only names of presets that are made of it later are still added."""
    name = at_work(tunings)
    tunings.append(name, [stage(0)], AT + 1, answer(1))
    tunings.end_session(name, 1, at=AT + 5, outcome="done")
    with pytest.raises(StoreError, match="the tuning has ended"):
        tunings.append(name, [], AT + 2, answer(2))
    with pytest.raises(StoreError, match="the tuning has ended"):
        tunings.append(name, [stage(1)], AT + 6)
    with pytest.raises(UserError, match="has ended, there is nothing left to do"):
        tunings.begin_session(name, AT + 6)
    for preset in ("smol-tuned", "another"):
        tunings.append_preset(name, preset, AT + 7, stage=0)
    assert tunings.find(name).presets == tunings.tunings()[0].presets == ("smol-tuned", "another")


def test_whole_tunings_go_and_the_others_stay(tunings, store):
    name = at_work(tunings)
    tunings.append(name, [stage(0)], AT + 1, answer(1))
    tunings.append_preset(name, "smol-tuned", AT + 7)
    other_tuning = tunings.begin(a_tuning(created_at=AT + 100))
    with pytest.raises(UserError, match="a process is working"):
        tunings.delete([other_tuning, name])
    tunings.end_session(name, 1, at=AT + 5, outcome="stopped")
    assert tunings.delete([name, "unheard-of"]) == 1
    assert [tuning.id for tuning in tunings.tunings()] == [other_tuning]
    assert rows(store) == {
        table: int(table == "tunings") for table in (*TUNINGS.parts, TUNINGS.table)
    }


def test_id_is_unlike_those_of_runs_and_of_the_swarm(tunings, store, begin):
    """One name, one thing: `skep runs show` and `skep tune show` take the same ids."""
    run = begin(store)
    swarm_run = SwarmStore(store).begin(
        kind="map",
        created_at=AT,
        name="x",
        url="u",
        model=None,
        config={},
        skep_version="0",
        tasks=[],
    )
    taken = [name.rpartition("-")[2] for name in (run, swarm_run)]
    suffixes = iter([*taken, "0fade0"])
    assert tunings.begin(a_tuning(), suffix=lambda: next(suffixes)) == "20261115-142233-0fade0"


def test_views_tell_what_other_programs_ask_for(tunings, store):
    """The best is the last that was kept and did not fail later; an open end of an interval is
    NULL.
    """
    name = at_work(tunings)
    change = (KnobChange("graphs", False, True),)
    tunings.append(name, [stage(0, figure=20.0)], AT + 1, answer(1))
    open_ended = Interval(29.0, 30.0, float("inf"))
    accepted = stage(
        1, StageDecision.ACCEPTED, changes=change, config=GRAPHS, ratio=open_ended, predicted=1.4
    )
    tunings.append(name, [accepted], AT + 2, answer(2))
    (row,) = store.read(
        "SELECT goal, shape, slo, outcome, stages, accepted, baseline_figure, best_figure "
        "FROM v_tunings"
    )
    assert tuple(row) == (
        "effective_tok_s@4",
        "512 in, 128 out, C=4",
        "ttft=1s",
        "no end recorded",
        2,
        1,
        20.0,
        25.0,
    )
    row = store.read(
        "SELECT change, ratio, ratio_high, predicted_ratio, config FROM v_tuning_stages"
    )[1]
    assert tuple(row) == ("graphs off → on", 30.0, None, 1.4, '{"graphs": true, "slots": 4}')
    failed = stage(
        2,
        StageDecision.FAILED,
        config=GRAPHS,
        figure=1.0,
        failure=ConfigFailure("crash-under-load", "it died"),
    )
    tunings.append(name, [failed], AT + 3, answer(3))
    assert store.read("SELECT best_figure FROM v_tunings")[0][0] == 20.0


def test_damaged_row_is_named(tunings, store):
    """Rows cannot be changed by us; whoever did it by hand is told which one it was."""
    name = at_work(tunings)
    tunings.append(name, [stage(0)], AT + 1, answer(1))
    with sqlite3.connect(store.path) as connection:
        connection.execute("DROP TRIGGER tuning_stages_no_update")
        connection.execute("UPDATE tuning_stages SET document = '{\"number\": 0}'")
    connection.close()
    with pytest.raises(StoreError, match=f"tuning `{name}` has a row that this skep cannot read"):
        tunings.stages(name)


def test_tuning_of_the_first_schema_that_had_them(old_file):
    """It is read as the dump has it, with its dead end and its open interval."""
    with open_store(old_file("8")) as store:
        tunings = TuningStore(store)
        stored = tunings.find("last")
        assert (stored.state, stored.answers, stored.presets) == (
            TuningState.INTERRUPTED,
            2,
            ("smol-tuned",),
        )
        assert stored.tuning.knobs[1] == Knob("slots", "slots", (1, 2, 4, 8), ordered=True)
        baseline, dead_end = tunings.stages(stored.id)
        assert baseline.figure == Interval(24.0, 25.0, float("inf"))
        assert dead_end.failure.evidence == "CUDA out of memory"
        assert [request.purpose for request, _ in tunings.answers(stored.id)] == [
            "baseline",
            "screen",
        ]
