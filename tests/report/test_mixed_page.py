"""The report of the mixed workload, on the figures of a published write-up with its verdicts had by execution."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from skep.records import RunState
from skep.report import theme
from skep.report.mixed import mixed_page, mixed_picture
from skep.report.mixed_charts import change, side_chart, total_chart, ttft_chart
from skep.report.mixed_tables import axes_table, disagreements, primary_table, side_table
from skep.report.subjects import full_load, subjects_of, verdict_word
from skep.verdicts import Advice, Axis, MixedLevel, MixedSummary, Outcome, SideFigures, TurnFigures, Verdict

SVG = "{http://www.w3.org/2000/svg}"
NAMES = {1: "P1", 2: "P1+S1", 3: "P1+S1-S2", 5: "P1+S1-S4"}
TITLES = {"S1": "docstring", "S2": "tests", "S3": "bug find", "S4": "async"}
AXES = ("solo speed", "TTFT stability", "latency under load", "throughput", "side-task accuracy", "primary accuracy")

# C, TTFT of turn 1 in ms, the turns in ms, total in s, tok/s of turn 1 and of all, and for each side task its time in s
# and whether keywords let it pass. All passed when they were looked at.
GPT_OSS = (
    (1, 64, (844, 757, 1617), 3.2, 127, 127, ()),
    (2, 139, (2873, 3175, 1074), 7.1, 49, 108, ((4.5, 1),)),
    (3, 150, (3882, 2144, 1382), 7.4, 45, 143, ((5.5, 1), (5.8, 1))),
    (5, 290, (6448, 973, 825), 8.2, 34, 177, ((5.5, 1), (6.8, 0), (6.8, 0), (2.7, 1))),
)
QWEN3 = (
    (1, 135, (722, 624, 855), 2.2, 80, 80, ()),
    (2, 110, (1264, 1608, 1491), 4.4, 34, 88, ((3.1, 1),)),
    (3, 135, (1465, 1685, 572), 3.7, 29, 105, ((2.7, 1), (3.1, 1))),
    (5, 191, (2252, 2084, 1948), 6.3, 26, 137, ((3.4, 1), (3.8, 1), (5.2, 0), (0.9, 1))),
)


def _turn(i, s, ttft, tok_s):
    return TurnFigures(f"P1.{i + 1}", 1, ttft, s, None, tok_s, None, None, passed=1, judged=1, keywords_passed=1)


def _side(item, s, words):
    return SideFigures(item, TITLES[item], 1, s, None, None, passed=1, judged=1, keywords_passed=words)


def _level(c, ttft, turns, total, tok_s, aggregate, side):
    return MixedLevel(
        name=NAMES[c],
        concurrency=c,
        repeats=1,
        turns=tuple(_turn(i, ms / 1000, *((None, None) if i else (ttft, tok_s))) for i, ms in enumerate(turns)),
        side=tuple(_side(f"S{i + 1}", s, words) for i, (s, words) in enumerate(side)),
        primary_s=total,
        primary_low_s=total,
        primary_high_s=total,
        wall_s=total,
        aggregate_tok_s=aggregate,
        seconds_per_task=total / (3 + len(side)),
        held_share=0.34 if c == 5 else 0.7 if c > 1 else None,
        outcomes=(("passed", 3 + len(side)),),
    )


def _summary(run_id, model, levels, values):
    axes = tuple(
        Axis(name, f"what {name} is", value, f"shown {value}") for name, value in zip(AXES, values, strict=True)
    )
    reasons = ("C=3: the conversation takes 2.31x of C=1 (7.4 s)", "C=5: 2.56x, more than 2.5x")
    return MixedSummary(
        run_id, model, "published", tuple(_level(*one) for one in levels), axes, Advice(3, "P1+S1-S2", reasons)
    )


GPT = _summary("01GPT", "gpt-oss-20b", GPT_OSS, (1.0, 0.22, 0.39, 0.28, 1.0, 1.0))
QWEN = _summary("02QWEN", "qwen3-coder-30b-a3b", QWEN3, (0.63, 0.71, 0.35, 0.34, 1.0, 1.0))


@pytest.fixture(scope="module")
def both(run):
    return [_entry(run, GPT), _entry(run, QWEN)]


@pytest.fixture(scope="module")
def one(run):
    return [_entry(run, GPT)]


@pytest.fixture(scope="module")
def page(both):
    return mixed_page(both)


@pytest.fixture(scope="module")
def single(one):
    return mixed_page(one)


@pytest.fixture(scope="module")
def drawing(both):
    return mixed_picture(both)


def _entry(run, summary, **fields):
    return replace(run, id=summary.run_id, kind="mixed", model=summary.model, **fields), summary


def _text(page):
    plain = re.sub(r"<svg.*?</svg>", " ", page.partition("</style>")[2], flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", plain)).replace("&#x27;", "'")


def _words(svg):
    return ["".join(text.itertext()) for text in ET.fromstring(svg).iter(f"{SVG}text")]


def _labels(spec):
    return [row["label"] for layer in spec["layer"] for row in layer["data"]["values"] if "label" in row]


def _failed(summary):
    """Nothing was answered at any level."""
    levels = []
    for level in summary.levels:
        turns = [replace(turn, ttft_ms=None, seconds=None, tok_s=None, passed=0, runs=0) for turn in level.turns]
        side = [replace(one, seconds=None, passed=0, keywords_passed=None) for one in level.side]
        bare = {"primary_s": None, "primary_low_s": None, "primary_high_s": None, "aggregate_tok_s": None}
        levels.append(replace(level, turns=tuple(turns), side=tuple(side), seconds_per_task=None, **bare))
    axes = tuple(replace(axis, value=None, shown="") for axis in summary.axes)
    return replace(summary, levels=tuple(levels), axes=axes, advice=Advice(None, None, ("none passed",)))


def test_ttft_degradation_comes_out_as_published(page):
    """The rise against C = 1 in per cent, model by model."""
    text = _text(page)
    for cells in (
        "1 64 ms 135 ms",
        "2 139 ms (+117 %) 110 ms (−19 %)",
        "3 150 ms (+134 %) 135 ms (±0 %)",
        "5 290 ms (+353 %) 191 ms (+41 %)",
    ):
        assert cells in text


def test_conversation_and_side_tasks_come_out_as_published(both):
    """Times by turn, total, and each side task with its verdict."""
    gpt, qwen = subjects_of(both)
    assert "5 P1+S1-S4 290 ms 6.4 s 973 ms 825 ms 8.2 s" in _text(f"</style>{primary_table(gpt)}")
    assert "5 PASS (3.4 s) PASS (3.8 s) PASS (5.2 s) PASS (900 ms)" in _text(f"</style>{side_table(qwen)}")


def test_load_that_was_not_held_is_called_so(one):
    """The side tasks were over before turn 3, so C = 5 was there for a third of the time only."""
    table = _text(f"</style>{primary_table(subjects_of(one)[0])}")
    assert "At C = 5 all side tasks were in flight 34 % of the conversation's time: C = 5 was not held" in table


def test_recommendation_leads_the_page_with_its_figures(single):
    text = _text(single)
    assert "Sweet spot C = 3 (P1+S1-S2). C=3: the conversation takes 2.31x of C=1 (7.4 s)" in text
    assert text.index("Sweet spot") < text.index("What side tasks do to a conversation")


def test_form_is_said_on_top(one, single, run):
    """Published and sustained loads are not the same, and two forms side by side are flagged."""
    assert "Published form: each side task was sent once" in _text(single)
    sustained = replace(QWEN, form="sustained")
    text = _text(mixed_page([*one, _entry(run, sustained)]))
    assert "Forms differ" in text
    assert "A published; B sustained" in text


def test_verdicts_that_keywords_miss_stand_beside_their_bars(both):
    """Only where the two differ: three of the eight."""
    labels = _labels(side_chart(subjects_of(both)))
    assert labels.count("PASS") == 8
    assert labels.count("keywords say FAIL") == 3


def test_each_disagreement_is_listed_with_its_reason(one):
    """From the single verdicts where they are at hand; warm-up and agreement are left out."""
    verdicts = [
        Verdict(5, 0, 2000, "S2", Outcome.PASSED, "7 mutants found", keywords=False, keywords_missing=("pytest",)),
        Verdict(5, 1, 3000, "S3", Outcome.BROKEN, "SyntaxError in line 3", keywords=True),
        Verdict(5, 0, 1000, "S1", Outcome.PASSED, keywords=True),
        Verdict(0, 0, 9000, "S4", Outcome.WRONG, "warm-up", keywords=True),
    ]
    table = _text(f"</style>{disagreements(subjects_of(one)[0], verdicts)}")
    assert "5 1 S2 PASS FAIL: no pytest 7 mutants found" in table
    assert "5 2 S3 FAIL: broken PASS SyntaxError in line 3" in table
    assert "S1" not in table
    assert "warm-up" not in table


def test_disagreements_are_counted_where_single_verdicts_are_missing(both):
    gpt, qwen = subjects_of(both)
    assert "5 S2 PASS FAIL 5 S3 PASS FAIL" in _text(f"</style>{disagreements(gpt, ())}")
    alike = replace(qwen.summary, levels=qwen.summary.levels[:3])
    text = _text(f"</style>{disagreements(replace(qwen, summary=alike), ())}")
    assert "agree wherever both were had" in text


def test_axes_have_their_definitions_and_values(both):
    text = _text(f"</style>{axes_table(subjects_of(both))}")
    assert "TTFT stability 0.22 · shown 0.22 0.71 · shown 0.71 what TTFT stability is" in text


@pytest.mark.parametrize(
    ("passed", "judged", "word"),
    [(1, 1, "PASS"), (0, 1, "FAIL"), (3, 3, "PASS 3/3"), (0, 3, "FAIL 0/3"), (2, 3, "2 of 3"), (0, 0, "not judged")],
)
def test_a_verdict_is_a_word_and_a_count(passed, judged, word):
    assert verdict_word(passed, judged) == word


@pytest.mark.parametrize(("value", "base"), [(None, 1.0), (1.0, None), (1.0, 0.0), (float("nan"), 1.0)])
def test_a_change_from_the_unknown_is_unknown(value, base):
    assert change(value, base) is None


def test_degradation_has_one_line_a_model_with_its_letter(both):
    """Dash and shape differ as well as colour."""
    spec = ttft_chart(subjects_of(both))
    assert {"A  290 ms, +353 %", "B  191 ms, +41 %"} <= set(_labels(spec))
    lines = [layer["mark"] for layer in spec["layer"] if layer["mark"]["type"] == "line"]
    assert len({(mark["color"], tuple(mark.get("strokeDash", ()))) for mark in lines}) == 2
    assert "A  8.2 s, +156 %" in _labels(total_chart(subjects_of(both)))


def test_full_load_is_the_largest_level_that_all_have(run, both):
    """A model that was stopped at C = 3 is not held against another at C = 5."""
    short = replace(QWEN, levels=QWEN.levels[:3])
    assert [level.concurrency for _, level in full_load(subjects_of([both[0], _entry(run, short)]))] == [3, 3]
    alone = replace(QWEN, levels=QWEN.levels[:1])
    assert [level and level.concurrency for _, level in full_load(subjects_of([_entry(run, alone)]))] == [None]


def test_picture_has_the_three_pictures_in_theme_colours(drawing):
    """A colour that the night rules do not know would stay dark on dark."""
    words = _words(drawing)
    for word in ("Radar", "TTFT of turn 1", "Time of the conversation", "Side tasks at full load (C = 5)", "PASS"):
        assert word in words
    assert "A   gpt-oss-20b" in words
    colours = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]+)"', drawing))
    assert set(theme.SERIES[:2]) < colours <= set(theme.NIGHT)


def test_a_run_in_which_all_failed_is_drawn_without_a_single_zero(run):
    """Unknown times are dashes and empty panels; the verdicts are there."""
    entries = [_entry(run, _failed(GPT), state=RunState.FAILED, error="boom")]
    words = _words(mixed_picture(entries))
    assert words.count("not measured") == 3
    assert words.count("FAIL") == 4
    assert "0 ms" not in words
    text = _text(mixed_page(entries))
    assert "No level is recommended. none passed" in text
    assert "Incomplete" in text
    assert "boom" in text
    assert "not asked" in text


def test_a_run_without_levels_still_has_a_page(run):
    empty = replace(_failed(GPT), levels=())
    assert _words(mixed_picture([_entry(run, empty)])).count("not measured") == 4
    assert "No side task ran beside the conversation." in _text(mixed_page([_entry(run, empty)]))


def test_simulated_runs_are_marked_on_page_and_picture(run):
    entries = [_entry(run, replace(GPT, simulated=True, levels=GPT.levels[:1]), simulated=True)]
    assert "Simulated No model ran." in _text(mixed_page(entries))
    assert "SIMULATED" in " ".join(_words(mixed_picture(entries)))


def test_nothing_from_outside_becomes_markup(run):
    """Names, reasons, titles and details are text; long ones are cut in pictures."""
    hostile = "<script>alert(1)</script>\x00" + 300 * "x"
    side = tuple(replace(one, title=hostile) for one in GPT.levels[-1].side)
    odd = replace(
        GPT,
        model=hostile,
        form=hostile,
        levels=(replace(GPT.levels[-1], name=hostile, side=side),),
        axes=tuple(replace(axis, name=f"{hostile}{i}", shown=hostile) for i, axis in enumerate(GPT.axes)),
        advice=Advice(5, hostile, (hostile,)),
        incomplete=hostile,
    )
    verdicts = {odd.run_id: [Verdict(5, 0, 1, hostile, Outcome.WRONG, hostile, keywords=True)]}
    entries = [_entry(run, odd), _entry(run, QWEN)]
    for made in (mixed_page(entries, verdicts), mixed_picture(entries[:1])):
        assert "<script" not in made
        assert "\x00" not in made


def test_page_is_one_small_file_and_the_same_each_time(both, page):
    """No clock, counter or chance has a part in it, and nothing is loaded from elsewhere."""
    assert mixed_page(both) == page
    assert len(page.encode()) < 150_000
    assert not re.search(r'(?:src|href)="(?!data:,")', page)
