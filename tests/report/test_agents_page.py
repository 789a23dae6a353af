"""The page of sessions held at once says where the cliff is, and draws it."""

import pytest
from msgspec.structs import replace
from reading import Outline

from sample_sessions import level_rows, summary_of
from skep.report.agents_page import agents_page, first_token_chart, hits_chart, turns_chart
from skep.report.stored import agents_report
from skep.report.svg import picture
from skep.store.records import EngineTimings


@pytest.fixture(scope="module")
def sessions():
    """One, two and four sessions; the four lose half of their hits."""
    return summary_of(
        level_rows(1, pause_s=1.0),
        level_rows(2, pause_s=1.0),
        level_rows(4, pause_s=1.0, hit=0.5),
    )


@pytest.fixture
def agents_run(run):
    return replace(run, kind="agents")


def text_of(run, summary):
    return Outline(agents_page(run, summary, ())).text


def test_the_finding_stands_above_the_figures(agents_run, sessions):
    text = text_of(agents_run, sessions)
    assert "The session cliff lies beyond 2 sessions: with 4 hits lie" in text
    assert "Session cliff 2 sessions; beyond it each gets less" in text


def test_a_page_without_a_cliff_says_that_none_is_shown(agents_run):
    text = text_of(agents_run, summary_of(level_rows(1), level_rows(2)))
    assert "Session cliff – none is shown" in text
    assert "no session cliff is shown up to 2 sessions" in text


def test_all_levels_stand_in_the_table(agents_run, sessions):
    text = text_of(agents_run, sessions)
    for words in ("turns/min", "possible", "4 of 4", "0 of 4"):
        assert words in text


def test_the_cliff_is_marked_in_the_pictures_of_turns_and_hits(sessions):
    for draw in (turns_chart, hits_chart):
        svg = str(picture(draw(sessions.levels, sessions.cliff), "turns"))
        assert "cliff: 2 sessions" in svg


def test_the_axis_counts_sessions(sessions):
    for spec in (turns_chart(sessions.levels), first_token_chart(sessions.levels)):
        assert spec["encoding"]["x"]["title"] == "sessions at once"


def test_hits_that_nobody_tells_are_no_picture(agents_run):
    rows, fact = level_rows(1)
    silent = [replace(row, engine=EngineTimings()) for row in rows]
    summary = summary_of((silent, fact))
    assert hits_chart(summary.levels) is None
    assert "--enable-prompt-tokens-details" in text_of(agents_run, summary)


def test_a_run_without_one_level_still_has_a_page(agents_run):
    text = text_of(agents_run, summary_of())
    assert text.count("not measured") == 3


def test_the_report_of_a_stored_run_is_made_from_its_rows(store):
    run_id = store.begin_run(
        kind="agents",
        created_at=1.0,
        model="m",
        url="http://127.0.0.1:1/v1",
        fingerprint="f",
        config={},
        host={},
        engine={},
        simulated=False,
        skep_version="0",
    )
    rows, fact = level_rows(1)
    store.append_requests(run_id, rows)
    store.append_level_facts(run_id, [fact])
    store.end_run(run_id, 2.0, "done")
    page = agents_report(store, store.run(run_id))
    assert "Turns a minute" in Outline(page).text
