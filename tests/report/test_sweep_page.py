"""The page of a sweep says what was measured, what was not, and needs nothing but itself."""

import pytest
from msgspec.structs import replace
from reading import Outline

from skep.bench.metrics import SweepSummary
from skep.report.sweep import sweep_page
from skep.store.records import RunState


def test_headline_figures_name_their_level(page, levels):
    """The best effective tok/s, the speedup, and contention and TTFT at the largest C."""
    text = Outline(page).text
    assert "Effective tok/s 195 at C = 8, the best level that the client did not limit" in text
    assert "Swarm speedup 5.5× 3 min 27 s serial, 37.4 s swarm" in text
    assert "Contention 61 % at C = 16, the largest level" in text
    assert "TTFT p50 498 ms at C = 16; 92 ms at C = 1" in text


def test_level_that_the_client_limited_is_never_the_best(run, summary):
    """Where it limited all of them, the fastest is shown as a lower bound."""
    limited = replace(
        summary, levels=tuple(replace(level, client_limited=True) for level in summary.levels)
    )
    page = sweep_page(run, limited, ())
    assert "Effective tok/s 231 at C = 16, client-limited: a lower bound" in Outline(page).text
    assert 'class="best"' not in page


def test_page_says_what_ran_where(page):
    """Model, URL, engine, host, Python, skep version, seed, run id,
    state and time are all on it.
    """
    text = Outline(page).text
    facts = (
        "model Qwen/Qwen3-30B-A3B-Instruct-AWQ|url http://127.0.0.1:8000/v1|version "
        "0.11.0|python 3.12.7|skep 0.1.0"
    )
    facts += (
        "|seed 7|run 01JCR8Z7|state done|began 2025-11-15 03:00:00 UTC|memory 64.0 GiB|open "
        "files soft –"
    )
    for fact in (*facts.split("|"), "name NVIDIA GeForce RTX 3090, memory 24.0 GiB"):
        assert fact in text


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.DONE])
def test_unfinished_run_carries_a_banner(run, summary, state):
    """Whatever is not done is incomplete, and the page says so above its figures."""
    text = Outline(sweep_page(replace(run, state=state, error="disk is full"), summary, ())).text
    assert text.index("Incomplete") < text.index("Swarm speedup")
    assert f"This run is {state.value}" in text
    assert "disk is full" in text


def test_new_sections_appear_only_with_their_figures(run, summary, complete):
    """What an old run does not know is left out, never zero."""
    unknown = replace(summary, speedups=None)
    old, new = (Outline(sweep_page(run, sweep, ())).text for sweep in (unknown, complete))
    for words in ("J/token", "power cap", "By tokens (ratio", "of the beginning"):
        assert words in new
        assert words not in old


def test_password_in_the_url_is_left_out(run, summary):
    """A report is passed on; the key to the endpoint is not."""
    page = sweep_page(replace(run, url="http://me:hunter2@box:8000/v1"), summary, ())
    assert "hunter2" not in page
    assert "http://box:8000/v1" in page


def test_run_without_one_level_still_has_a_page(run):
    """A run that died at once is reported with dashes and empty pictures."""
    empty = SweepSummary(run.id, (), client_limited=False)
    text = Outline(sweep_page(replace(run, state=RunState.FAILED), empty, ())).text
    assert text.count("not measured") == 4
    assert "Effective tok/s –" in text
