"""A tuning in the terminal, from values made by hand: nothing is measured here."""

import pytest
from msgspec.structs import replace

from skep.cli import tune_run as tables
from skep.errors import UserError
from skep.report import tuning as tuning_report
from skep.report.liveview import Page
from skep.report.tuning import stage_columns
from skep.tuner.records import (
    BenchProgress,
    ConfigFailure,
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
from skep.tuner.setup import choose_knobs
from skep.tuner.store import TuningRecord, TuningState
from skep.tuner.summary import missed_slo, stage_words
from skep.units import Interval

SLOTS = Knob("slots", "slots", (1, 2, 4, 8), ordered=True)
GRAPHS = Knob("graphs", "CUDA graphs", (False, True))
KV = Knob("kv", "KV type", (None, "f16", "q8_0"), alters_answers=True)
KNOBS = (SLOTS, GRAPHS, KV)
BASE = KnobConfig.of({"slots": 1, "graphs": False, "kv": None})
BEST = BASE.turned({"graphs": True})
OOM = ConfigFailure(
    "out-of-memory", "no room for the cache", "CUDA out of memory: tried 2 GiB", "lower the memory share"
)


def stage(number, decision, *, changes=(), config=BASE, figure=None, ratio=None, **more):
    interval = None if figure is None else Interval(0.97 * figure, figure, 1.03 * figure)
    times = None if ratio is None else Interval(ratio - 0.02, ratio, ratio + 0.02)
    return TuneStage(number, changes, config, decision, more.pop("why", "because"), interval, times, **more)


STAGES = [
    stage(0, StageDecision.BASELINE, figure=25.0, tpot_ms=40.0, ttft_ms=1234.0),
    stage(1, StageDecision.ACCEPTED, changes=(KnobChange("graphs", False, True),), config=BEST, figure=50.0, ratio=2.0,
          predicted=1.8),
    stage(2, StageDecision.FAILED, changes=(KnobChange("slots", 1, 8),), failure=OOM, why=str(OOM)),
]  # fmt: skip


def tuning(**more):
    values = {
        "id": "t-1", "created_at": 0.0, "model": "qwen", "engine": "vllm", "rig": "2x rtx-3090",
        "aim": TuneGoal("effective_tok_s", 4), "budget_s": 3600.0, "seed": 1, "simulated": True, "baseline": BASE,
        "knobs": KNOBS, "base": {}, "host": {}, "skep_version": "0",
    }  # fmt: skip
    return Tuning(**{**values, **more})


def cells(one, stages=STAGES):
    return {column.key: column.cell(one) for column in stage_columns(tuning(), stages)}


def record(stages, state=TuningState.ENDED, **more):
    return TuningRecord(tuning(**more), state, 1, 1, 60.0, 0.0, stages=tuple(stages))


def test_a_row_has_figure_interval_ratio_foresight_and_decision():
    assert list(cells(STAGES[1]).values()) == [
        "1", "graphs off → on", "accepted", "50.0", "48.5–51.5", "2.00×", "1.98–2.02", "1.80×", "–", "–", "because",
        "0", "0", "0 ms",
    ]  # fmt: skip


def test_a_tuning_is_told_in_its_first_line_and_its_dead_ends_in_full_below_the_table(capsys):
    tuning_report.print_tuning(record(STAGES))
    said = capsys.readouterr().out
    assert said.replace("\xa0", " ").startswith(
        "SIMULATED: qwen (vllm) on 2x rtx-3090: From 25.0 to 50.0 tok/s at C = 4 in one step: 2.00×"
    )
    assert "step 2 ran out of memory: no room for the cache" in said
    assert "(CUDA out of memory: tried 2 GiB); lower the memory share" in said


def test_what_was_accepted_and_died_says_so():
    died = stage(2, StageDecision.FAILED, changes=STAGES[1].changes, config=BEST, failure=OOM, why=str(OOM))
    stages = [*STAGES[:2], died]
    assert cells(stages[1], stages)["decision"] == "accepted, died later"


def test_the_picture_fits_its_page_and_shows_what_happens_now():
    status = tuning_report.TuneStatus(tuning(budget_s=600.0), 60.0, [*STAGES] * 10)
    status.request = MeasureRequest((BASE, BEST), 4, "confirm", "graphs off → on, start 2")
    status.progress = BenchProgress(BEST, "measuring", 2, 4, 51.2)
    lines = tuning_report.status_lines(status, Page(60, 20), 30.0)
    text = ["".join(part for part, _ in line) for line in lines]
    assert len(lines) <= 20
    assert all(len(line) <= 60 for line in text[5:])
    assert "90.0 s of 10 min 00 s, 8 min 30 s left" in text[2]
    assert "graphs off → on, start 2: measuring 2/4, 51.2 tok/s" in text[3]


def test_without_a_terminal_each_stage_is_a_line(capsys):
    status = tuning_report.TuneStatus(tuning())
    request = MeasureRequest((BASE,), 2, "baseline", "the baseline")
    with tables.tuning_view(status) as on_event:
        on_event(request)
        on_event(STAGES[0])
        on_event(MeasurementRound((), 12.0))
    said = capsys.readouterr().err
    assert said == f"{stage_words(STAGES[0], 'tok/s')}\n"
    assert status.spent_s == 12.0


def test_knobs_are_chosen_by_name():
    assert choose_knobs(KNOBS, None, None) == KNOBS
    assert choose_knobs(KNOBS, "kv, slots", "kv") == (SLOTS,)
    with pytest.raises(UserError, match="`slot` is not a knob here") as told:
        choose_knobs(KNOBS, "slot", None)
    assert "did you mean `slots`" in told.value.hint
    with pytest.raises(UserError, match="no knob is left"):
        choose_knobs(KNOBS, "kv", "kv")


def test_an_slo_that_nothing_kept_is_told_with_how_near_the_best_came():
    wanted = tuning(aim=TuneGoal("effective_tok_s", 4, slo="ttft_p95=1ms"))
    late = [STAGES[0], replace(STAGES[1], over_limit=1.5)]
    assert "closest came step 1 with 1.50 times the limit" in missed_slo(wanted, late).message
    assert missed_slo(wanted, STAGES) is None
