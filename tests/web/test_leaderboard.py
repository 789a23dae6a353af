"""The leaderboard: the best run of a model on a machine, and the step that won it."""

import csv
import io
import json

import pytest
from running_site import running
from stored_runs import ENGINE, HOST, RTX, SIMULATED, WORKLOAD, installation, put_run

from sample_climb import sample_stages, sample_tuning
from skep.store.tunings import TuningStore
from skep.tunings import Aim
from skep.web import leaderboard
from skep.web.runs_best import Step, step_words
from skep.web.site import Site

MADE = {}
OTHER_LOAD = {"concurrency": [1, 2, 4], "workload": {**WORKLOAD, "max_tokens": 16}}


def fill(store):
    MADE["first"] = put_run(store, 0, tokens=100)
    MADE["more slots"] = put_run(store, 1, tokens=110, engine={**ENGINE, "slots": 8})
    MADE["again"] = put_run(store, 2, tokens=105, engine={**ENGINE, "slots": 8})
    MADE["failed"] = put_run(store, 3, tokens=900, end="failed")
    MADE["cpu"] = put_run(store, 4, tokens=3, host=HOST)
    MADE["other load"] = put_run(store, 5, tokens=9, host=HOST, engine={**ENGINE, "slots": 2}, config=OTHER_LOAD)
    MADE["simulated"] = put_run(store, 6, tokens=999, simulated=True, engine={"engine": SIMULATED})
    MADE["of a tuning"] = put_run(store, 6.5, tokens=999, kind="tune", levels=(4,))
    MADE["timed"] = put_run(store, 7, tokens=999, kind="open", config={"rates": [1.0, 2.0]}, levels=(1, 2))


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with running(Site(installation(tmp_path_factory.mktemp("board"), fill))) as asked:
        yield asked


@pytest.fixture(scope="module")
def board(ask):
    return json.loads(ask("/api/leaderboard.json")[1])["leaders"]


def test_each_model_has_its_best_run_on_each_machine(board):
    assert [one["run"] for one in board] == [MADE["more slots"], MADE["other load"], MADE["simulated"]]
    assert [one["machine"] for one in board] == ["2x RTX 3090", "Test CPU, 4 cores", "2x rtx-3090"]
    assert (board[0]["best_tok_s"], board[0]["best_at"]) == (pytest.approx(440), 4)


def test_the_step_that_won_is_what_differs_from_the_next_best_setup(board):
    """Not from a repeat of the same setup, which only shows the noise."""
    assert board[0]["step"] == "slots 4 → 8: +10.0 %"
    assert board[0]["beaten"] == MADE["first"]
    assert (board[0]["runs"], board[0]["setups"]) == (3, 2)


def test_a_simulated_step_names_only_what_differs(tmp_path):
    """The rig describes itself in one sentence: two of them side by side would fill the cell."""
    told = "simulated: qwen3.6-27b AWQ 4-bit, KV BF16, {}, {} on 2x rtx-3090, as vllm"

    def fill_two(store):
        setups = (("mtp n=3", "TP=2", 1, 100), ("mtp n=3", "2 x TP=1", 2, 125))
        for place, (spec, layout, replicas, tokens) in enumerate(setups):
            engine = {"engine": told.format(spec, layout), "replicas": replicas, "simulated": True, "slots": 4}
            put_run(store, place, tokens=tokens, simulated=True, engine=engine)

    with running(Site(installation(tmp_path, fill_two))) as ask:
        one = json.loads(ask("/api/leaderboard.json")[1])["leaders"][0]
        assert one["step"] == "TP=2 → 2 x TP=1: +25.0 %"
        assert (one["layout"], one["setups"]) == ("2 x TP=1", 2)


def test_long_values_of_a_step_are_cut_to_what_differs():
    what = (("engine", "x 1, a, y", "x 1, b, y"), ("build", "v" * 90, "w" * 90), ("slots", "4", "8"), ("z", "1", "2"))
    told = step_words(Step(what, 0.004, "r"))
    assert told.startswith("a → b; build vvv")
    assert told.endswith("slots 4 → 8 and 1 more: +0.4 %, about the same")
    assert len(told) < 150


def test_a_board_of_many_runs_shows_how_far_it_is_and_comes_to_its_end(tmp_path, monkeypatch):
    """Whoever asks again gets at least one run more, however slow the machine is."""
    monkeypatch.setattr(leaderboard, "PATIENCE_S", 0.0)
    monkeypatch.setattr(leaderboard, "A_PART_S", 0.0)
    site = Site(installation(tmp_path, lambda store: [put_run(store, place) for place in range(3)]))
    with running(site) as ask:
        first = ask("/leaderboard")[1]
        assert "1 of 3 runs were looked at" in first
        assert 'data-fetch="/leaderboard/body?"' in first
        second, third = ask("/leaderboard/body")[1], ask("/leaderboard/body")[1]
    assert "2 of 3" in second
    assert "data-more" in second
    assert "data-more" not in third
    assert "Measured</h2>" in third


def test_under_another_load_no_gain_is_claimed(board):
    assert board[1]["gain"] is None
    assert board[1]["step"].startswith("slots 4 → 2; how much it brought is not known")
    assert "max_tokens" in board[1]["step"]


def test_simulated_runs_stand_apart_and_marked(ask, board):
    assert [one["simulated"] for one in board] == [False, False, True]
    assert board[2]["step"] == "the only setup that was tried"
    page = ask("/leaderboard?whole=1")[1]
    assert page.index("Measured</h2>") < page.index("Simulated</h2>") < page.index(MADE["simulated"])


def test_the_page_links_to_the_runs_and_compares_them(ask):
    page = ask("/leaderboard?whole=1")[1]
    assert f'href="/runs/{MADE["more slots"]}"' in page
    assert f'href="/compare?runs={MADE["first"]},{MADE["more slots"]}"' in page
    assert MADE["failed"] not in page
    assert ask("/leaderboard/body")[1] in page


def test_one_model_alone_and_the_file(ask):
    assert json.loads(ask("/api/leaderboard.json?model=nobody")[1]) == {"leaders": []}
    rows = list(csv.DictReader(io.StringIO(ask("/api/leaderboard.csv?model=qwen3-8b")[1])))
    assert [row["run"] for row in rows] == [MADE["more slots"], MADE["other load"], MADE["simulated"]]


def test_with_nothing_measured_it_says_how_to_begin(tmp_path):
    with running(Site(installation(tmp_path))) as ask:
        assert "skep bench sweep" in ask("/leaderboard")[1]


def test_a_tuning_under_the_same_load_tells_the_step_that_won(tmp_path):
    """One under another load does not, however well it fits otherwise."""
    load = {"concurrency": [4], "workload": {**WORKLOAD, "prompt_tokens": 1024, "max_tokens": 1024}}
    made = {}

    def fill_tuned(store):
        put_run(store, 0, host=RTX, config=load, levels=(4,))
        put_run(store, 1, host=RTX, config=load, levels=(4,), model="other")
        tunings = TuningStore(store)
        told = {"simulated": False, "model": "qwen3-8b", "host": RTX}
        other = {**told, "aim": Aim("effective_tok_s", 4, 512, 128), "created_at": 1_790_000_000.0}
        for name, tuning in (("same", sample_tuning(**told)), ("newer", sample_tuning(**other))):
            made[name] = tunings.begin(tuning)
            tunings.append_stages(made[name], sample_stages(), tuning.created_at)

    with running(Site(installation(tmp_path, fill_tuned))) as ask:
        board = {one["model"]: one for one in json.loads(ask("/api/leaderboard.json")[1])["leaders"]}
        tuned = board["qwen3-8b"]
        assert tuned["tuning"] == made["same"]
        assert tuned["step"] == "mtp 3 → 5: 1.11× (95 %: 1.09–1.13), in a tuning under the same load"
        assert board["other"]["tuning"] is None
        assert f'href="/tuning/{made["same"]}"' in ask("/leaderboard?whole=1")[1]
