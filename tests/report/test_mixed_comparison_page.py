"""Two models under mixed work on one page, with the tables and charts of the write-up they are
from.
"""

import re

import pytest
from reading import Outline, plain, words_of

from sample_mixed import GPT_OSS, QWEN, store_mixed
from skep.errors import UserError
from skep.report.stored import drawn
from skep.store.database import open_store


@pytest.fixture
def page_of(tmp_path):
    """Stores the runs, each a model, a name and more of it, and returns their page."""

    def make(*runs, **options):
        with open_store(tmp_path / "store.sqlite3") as store:
            ids = [
                store_mixed(store, model, name, at=1e9 + n, **options)
                for n, (model, name) in enumerate(runs)
            ]
            return drawn(store, [store.run(run_id) for run_id in ids])

    return make


MODELS = ((GPT_OSS, "gpt-oss-20b"), (QWEN, "qwen3-coder-30b"))


def pictures(page):
    """The words of each picture by its title."""
    drawn = re.findall(r'(<svg [^>]*aria-label="([^"]+)".*?</svg>)', page, re.DOTALL)
    return {label: {*words_of(svg)} for svg, label in drawn}


def test_two_models_have_the_tables_of_the_write_up_below_their_verdict(page_of):
    page = page_of(*MODELS)
    text = plain(page)
    assert text.index("Better for this work: B, as its conversation") < text.index(
        "Time to first token"
    )
    for sentence in (
        "A gpt-oss-20b",
        "B qwen3-coder-30b",
        "5 290 ms (+353 %) 191 ms (+41 %) 0.66",
        "S2 tests 0/3 (6.8 s) 3/3 (3.8 s)",
        "Answers of A that did not pass",
        "GPU memory in use 14.0 GiB of 24.0 GiB 20.0 GiB of 24.0 GiB",
        "memory left free 0.42 (14.0 GiB of 24.0 GiB in use)",
    ):
        assert sentence in text
    assert not {"script", "img"} & set(Outline(page).tags)
    assert len(page.encode()) < 150_000


def test_two_models_have_the_pictures_of_the_write_up(page_of):
    """TTFT and total time over C, side tasks with time and verdict, six axes with memory."""
    drawn = pictures(page_of(*MODELS))
    curves = (
        "Time to first token",
        "Time of the conversation",
        "Speed of the conversation",
        "Passed tasks a minute",
    )
    assert all({"A", "B", "1", "2", "3", "5"} <= drawn[title] for title in curves)
    tasks = {"S3 bug  A", "6.8 s, 0/3 passed", "S4 async  B", "900 ms, 3/3 passed"}
    assert tasks <= drawn["Side tasks at full load"]
    assert {"TTFT stability  A", "0.22", "memory left free  A", "0.42", "0.17"} <= drawn["Axes"]


def test_a_run_alone_has_the_same_pictures_with_its_figures(page_of):
    drawn = pictures(page_of(MODELS[1]))
    assert {"2.2", "4.4", "3.7", "6.3"} <= drawn["Time of the conversation"]
    assert {"S1 docstring", "3.4 s, 3/3 passed"} <= drawn["Side tasks at full load"]
    assert {"memory left free", "0.17"} <= drawn["Axes"]


def test_three_runs_and_runs_without_a_shared_level_are_drawn_without_a_verdict(page_of):
    assert "C third" in plain(page_of(*MODELS, (QWEN, "third")))
    text = plain(page_of(*MODELS, (QWEN, "third")))
    assert "Better for this work" not in text
    alone = plain(page_of((QWEN, "one"), levels=(1,)))
    assert "not measured" in alone


def test_runs_that_are_simulated_or_were_not_finished_say_so(page_of):
    text = plain(page_of(*MODELS, simulated=True))
    assert "Simulated A, B: no model ran" in text


def test_a_mixed_run_is_not_drawn_beside_another_kind(tmp_path):
    with open_store(tmp_path / "store.sqlite3") as store:
        mixed = store.run(store_mixed(store, QWEN, "one"))
        about = {
            "url": "http://a/v1",
            "fingerprint": "f",
            "host": {},
            "engine": {},
            "skep_version": "0",
            "config": {},
        }
        sweep = store.begin_run(kind="sweep", created_at=1.0, model="m", simulated=False, **about)
        store.end_run(sweep, 2.0, "done")
        with pytest.raises(
            UserError, match="is a mixed run, which skep can only draw beside its like"
        ):
            drawn(store, [mixed, store.run(sweep)])
