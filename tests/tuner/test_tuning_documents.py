"""Values as documents: the stored form to the bit, the readers' form with its keys."""

import json

import pytest
from stored_search import BASELINE, OUT_OF_MEMORY, a_tuning

from skep.report.tuning import document
from skep.tuner import records, store
from skep.tuner.records import KnobConfig, MeasurementRound, StageDecision, TuneStage, Tuning
from skep.units import Interval

INF = float("inf")
MIXED = KnobConfig.of(
    {"a": 1, "b": 1.0, "c": True, "d": None, "e": "1", "f": 0.1 + 0.2, "g": INF, "h": "\ud83d ü"}
)
READING = records.TuneReading(
    None, 0.1 + 0.2, None, 1e-300, INF, 8.0, 12, failed=1, limited=True, over_limit=INF
)
STARTS = (
    records.ServerStart(BASELINE, 3.5, (READING,), None, "a-run"),
    records.ServerStart(MIXED, 0.0, failure=OUT_OF_MEMORY),
)
JUDGE = records.JudgeRequest(BASELINE, MIXED)
JUDGED = records.JudgeResult(ok=False, words="38 of 40", seconds=12.0)


def through_text(value):
    return json.loads(store.document_text(store.to_document(value)))


@pytest.mark.parametrize(
    ("sent_request", "answer"),
    [
        (
            records.MeasureRequest((BASELINE, MIXED), 3, "screen", "slots 1 → 2"),
            MeasurementRound(STARTS, 9.5),
        ),
        (JUDGE, JUDGED),
    ],
)
def test_request_and_answer_come_out_as_they_went_in(sent_request, answer):
    for value in (sent_request, answer):
        assert store.from_document(through_text(value), type(value)) == value


def test_value_of_a_knob_keeps_its_type():
    """1, 1.0 and true are equal to Python and three settings to an engine."""
    again = store.from_document(through_text(MIXED), KnobConfig)
    assert (again, again.key) == (MIXED, MIXED.key)
    assert [type(value) for _, value in again.values] == [type(value) for _, value in MIXED.values]


def test_document_of_an_older_skep_has_its_defaults():
    """Fields may be added; what was written without them can still be read."""
    written = store.to_document(a_tuning())
    del written["aim"]["min_context"], written["knobs"][0]["ordered"]
    assert store.from_document(written | {"of_the_future": 1}, Tuning) == a_tuning()


def test_readers_document_is_plain_json():
    """No infinity in it, intervals by name, settings by knob; baseline and best are stages."""
    faster = BASELINE.turned({"slots": 2})
    roomier = BASELINE.turned({"slots": 16})
    first = Interval(19.0, 20.0, INF)
    second = Interval(29.0, 30.0, 31.0)
    ratio = Interval(1.4, 1.5, 1.6)
    stages = (
        TuneStage(0, (), BASELINE, StageDecision.BASELINE, "2 starts", first, starts=2),
        TuneStage(
            1,
            faster.changes_from(BASELINE),
            faster,
            StageDecision.ACCEPTED,
            "better",
            second,
            ratio,
        ),
        TuneStage(
            2,
            roomier.changes_from(faster),
            roomier,
            StageDecision.FAILED,
            "no room",
            failure=OUT_OF_MEMORY,
        ),
    )
    written = document(
        store.TuningRecord(
            a_tuning(id="x"), store.TuningState.ENDED, 1, 3, 60.0, 0.0, stages=stages
        )
    )
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert list(written) == ["tuning", "baseline", "best", "gain", "stages", "reason", "presets"]
    named = [written["tuning"][name] for name in ("id", "goal", "state")]
    assert named == ["x", "effective_tok_s@4", "ended"]
    assert written["baseline"]["figure"] == {"low": 19.0, "estimate": 20.0, "high": None}
    assert written["best"] == written["stages"][1]
    assert written["best"]["changes"] == [{"knob": "slots", "before": 1, "after": 2}]
    assert written["stages"][2]["failure"]["evidence"] == "CUDA out of memory"


def test_round_that_an_earlier_skep_stored_is_read_and_written_with_the_same_keys():
    """`sittings` is what starts of a server were called: stores have it, and keep it."""
    reading = (
        '{"figure": 25.0, "effective_tok_s": 25.0, "task_tok_s": 6.5, "ttft_ms": 90.0, '
        '"tpot_ms": 20.0, '
    )
    reading += (
        '"wall_s": 8.0, "requests": 12, "failed": 0, "limited": false, "over_limit": '
        '{"no_number": "inf"}, '
    )
    failure = (
        '{"kind": "out-of-memory", "cause": "no room", "evidence": null, "remedy": null, '
        '"mended": [["slots", 2]]}'
    )
    stored = json.loads(
        f'{{"sittings": [{{"config": {{"values": [["slots", 4]]}}, "start_s": 12.5, '
        f'"readings": [{reading}'
        '"tok_per_joule": null}], "failure": null, "run_id": "a-run"}, {"config": '
        '{"values": [["slots", 8]]}, '
        f'"start_s": 1.0, "readings": [], "failure": {failure}, "run_id": null}}], '
        f'"seconds": 40.0}}'
    )
    read_back = store.from_document(stored, MeasurementRound)
    assert [start.config["slots"] for start in read_back.starts] == [4, 8]
    assert read_back.starts[0].readings[0].over_limit == INF
    assert read_back.starts[1].failure.kind == "out-of-memory"
    assert store.to_document(read_back).keys() == stored.keys()
