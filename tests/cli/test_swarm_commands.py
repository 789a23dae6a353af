"""`skep swarm` on what the journal has, and what is shown while a swarm works."""

import json
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from called import own_folders, swarm

from skep.cli.swarm_session import Ticker, after, frame
from skep.cli.top import Screen, bar_cells
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.journal import create_run
from skep.swarm.progress import Lane, SwarmProgress
from skep.swarm.records import Attempt, AttemptOutcome, Task, TaskEnding, TaskResult, Why
from skep.swarm.run_options import SwarmRunOptions
from skep.swarm.store import Recorded, SwarmStore

BEGAN = 1_790_000_000.0


@pytest.fixture
def paths(tmp_path, monkeypatch):
    own_folders(monkeypatch, tmp_path)
    return user_paths(os.environ)


def printed(*words):
    return swarm(*words, check=0).out


def attempt(task, number, outcome, **more):
    whole = {"session": 1, "agent": number - 1, "why": Why.FIRST if number == 1 else Why.RETRY, "output_tokens": 10}
    times = {"started_at": BEGAN + number, "ended_at": BEGAN + number + 0.5, "first_token_at": BEGAN + number + 0.1}
    return Attempt(task=task, number=number, outcome=outcome, **{**whole, **times, **more})


def result(task, ending=TaskEnding.DONE, **more):
    told = {"answer": f"answer of {task}", "value": None, "error_kind": None, "error": None, "tries": 1}
    times = {"started_at": BEGAN + 1, "ended_at": BEGAN + 2, "prompt_tokens": 5, "output_tokens": 10}
    return TaskResult(task=task, ending=ending, **{**told, **times, **more})


@pytest.fixture
def run_id(paths, tmp_path):
    """Three tasks: one done, one set aside after two tries, one left; its process has stopped."""
    tasks = [
        Task(name, ({"role": "user", "content": f"do {name}"},), max_tokens=16) for name in ("one", "two", "three")
    ]
    with open_store(paths.store) as store:
        order = SwarmRunOptions(output=str(tmp_path / "out.jsonl"))
        made = create_run(store, tasks, order, url="http://127.0.0.1:1/v1", model="m", name="tasks.jsonl")
        journal = SwarmStore(store)
        session = journal.open_session(made, at=BEGAN, agents=None, endpoint={"model": "m"}, simulated=False)
        failed = {"error_kind": "timeout", "error": "no answer\nin 10 s"}
        journal.record(
            made,
            [
                Recorded(attempt("one", 1, AttemptOutcome.DONE, replica="r0"), result("one", replica="r0")),
                Recorded(attempt("two", 1, AttemptOutcome.REJECTED, error_kind="rejected", error="no JSON")),
                Recorded(
                    attempt("two", 2, AttemptOutcome.FAILED, **failed),
                    result("two", TaskEnding.FAILED, tries=2, answer="half\x1b[31m", **failed),
                ),
            ],
        )
        journal.close_session(made, session, at=BEGAN + 9, outcome="stopped")
    return made


def test_runs_are_listed_with_what_is_left(run_id):
    assert [cell in printed("ls") for cell in (run_id, "stopped", "tasks.jsonl")] == [True] * 3
    (told,) = json.loads(printed("ls", "--json"))
    assert (told["id"], told["done"], told["failed"], told["left"]) == (run_id, 1, 1, 1)


def test_looking_at_nothing_makes_no_file(paths):
    nothing = swarm("ls", check=0)
    assert nothing.out == ""
    assert "no swarm runs yet" in nothing.err
    assert json.loads(printed("ls", "--json")) == []
    assert not paths.store.exists()


def test_show_begins_with_what_was_set_aside(run_id):
    shown = printed("show", run_id)
    assert shown.index("no answer in 10 s") < shown.index("1 done, 1 set aside, 1 left of 3")
    assert "AGENT" in shown
    assert f"skep swarm resume {run_id}" in swarm("show", "last").err
    told = json.loads(printed("show", run_id[:12], "--json"))
    assert told["failures"] == [{"id": "two", "tries": 2, "kind": "timeout", "message": "no answer\nin 10 s"}]
    assert told["account"]["tasks"] == 3


def test_a_trace_has_the_messages_the_attempts_and_the_answer(run_id):
    shown = printed("trace", run_id, "two")
    places = [shown.index(words) for words in ("do two", "rejected", "failed after 2 tries", "half")]
    assert places == sorted(places)
    assert "\x1b" not in shown
    told = json.loads(printed("trace", run_id, "two", "--json"))
    assert [one["outcome"] for one in told["attempts"]] == ["rejected", "failed"]
    assert told["result"]["tries"] == 2
    assert "no result yet" in printed("trace", "last", "three")


def test_results_come_from_the_journal_in_the_order_of_the_tasks(run_id, tmp_path):
    lines = [json.loads(line) for line in printed("results", run_id).splitlines()]
    assert [(line["id"], line["ok"]) for line in lines] == [("one", True), ("two", False)]
    assert [one["id"] for one in json.loads(printed("results", run_id, "--failed", "--json"))] == ["two"]
    printed("results", run_id, "--done", "-o", tmp_path / "kept.jsonl")
    assert json.loads((tmp_path / "kept.jsonl").read_text())["answer"] == "answer of one"


def test_a_report_is_a_page_or_a_picture(run_id, tmp_path):
    printed("report", run_id, "-o", tmp_path / "run.html")
    assert run_id in (tmp_path / "run.html").read_text()
    printed("report", run_id, "-o", tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text().startswith("<svg")


def test_a_run_that_nobody_works_on_is_cancelled_by_a_word(run_id):
    assert "1 done, 1 set aside, 1 left" in swarm("cancel", run_id).err
    assert json.loads(printed("ls", "--json"))[0]["state"] == "cancelled"


def test_a_run_killed_after_its_last_result_is_done_when_it_is_resumed(paths, run_id, tmp_path):
    """Nothing is sent: nobody listens at its URL."""
    with open_store(paths.store) as store:
        SwarmStore(store).record(run_id, [Recorded(attempt("three", 1, AttemptOutcome.DONE), result("three"))])
    called = swarm("resume", run_id, check=1)
    assert "2 of 3 tasks done" in called.err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


PROGRESS = SwarmProgress("r", 50, 30, 2, 3, 4, "4 slots", 10.0, 5.0, 80.0, 900, 1)
LANES = tuple(Lane(agent, f"task-{agent}", agent + 0.5, agent, 1 + agent % 2) for agent in range(40))


def text_of(lines):
    return ["".join(text for text, _ in line) for line in lines]


def test_a_frame_fits_its_window_and_counts_what_has_no_place():
    shown = text_of(frame(replace(PROGRESS, lanes=LANES, last=("task-9 set aside",)), Screen(80, 20), "run"))
    assert len(shown) <= 20
    assert any("30 done, 2 set aside, 18 left of 50" in line for line in shown)
    assert any("more at work" in line for line in shown)
    assert shown[-1] == "task-9 set aside"


def test_a_terminal_without_the_characters_gets_others():
    shown = "\n".join(text_of(frame(replace(PROGRESS, lanes=LANES[:2]), Screen(60, 24, "ascii"), "run")))
    assert shown.isascii()
    assert "=" in shown


def test_an_endpoint_that_is_down_is_shown_with_the_time_that_is_left():
    down = replace(PROGRESS, down_s=12.0, down_why="connection refused")
    shown = " ".join(text_of(frame(down, Screen(80, 24), "run", deadline_s=60.0)))
    assert "has not answered for 12.0 s (connection refused)" in shown
    assert "gives up in 48.0 s" in shown


@pytest.mark.parametrize(("done", "failed", "total"), [(0, 0, 50), (1, 1, 5000), (4998, 2, 5000), (0, 0, 0), (3, 0, 3)])
def test_a_bar_has_its_length_and_hides_nothing(done, failed, total):
    left = total - done - failed
    cells = bar_cells((done, failed, left), total, 40)
    assert sum(cells) == 40
    assert all(cell > 0 for cell, part in zip(cells, (done, failed, left), strict=True) if part)
    assert left or not total or cells[2] == 0


def test_where_nobody_watches_a_long_run_says_less_and_less():
    ticker = Ticker()
    said = [second for second in range(3600) if ticker.take(replace(PROGRESS, elapsed_s=float(second)))]
    pauses = [later - earlier for earlier, later in pairwise(said)]
    assert (min(pauses), max(pauses)) == (5, 60)
    assert len(said) < 100


def test_news_is_told_at_once_and_a_flood_is_counted():
    ticker = Ticker()
    ticker.take(PROGRESS)
    news = tuple(f"task-{number} set aside" for number in range(8))
    assert ticker.take(replace(PROGRESS, elapsed_s=11.0, last=news)) == list(news[:5])
    assert ticker.take(replace(PROGRESS, elapsed_s=12.0, last=news)) == []
    assert "and 3 more" in ticker.take(replace(PROGRESS, elapsed_s=30.0, last=news))[0]


def test_an_outage_has_its_beginning_and_its_end():
    ticker = Ticker(600.0)
    ticker.take(PROGRESS)
    told = [ticker.take(replace(PROGRESS, down_s=float(second), down_why="refused")) for second in range(30)]
    assert [second for second, lines in enumerate(told) if lines] == [0, 5, 10, 20]
    assert ticker.take(replace(PROGRESS, elapsed_s=11.0)) == ["the endpoint answers again after 29.0 s"]


def test_only_what_is_new_in_a_list_of_the_newest_is_new():
    assert after((), ("a",)) == ("a",)
    assert after(("a", "b", "c"), ("b", "c", "d")) == ("d",)
    assert after(("a",), ("a",)) == ()
    assert after(("a", "b"), ("x", "y")) == ("x", "y")
