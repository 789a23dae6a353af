"""`skep swarm run` and what follows, on an engine that is a real process; what is refused; what a
journal shows.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest
from in_process import call, refused
from msgspec.structs import replace

from sample_swarm import ERROR, put_swarm_run
from skep.files import lock_holder
from skep.report.liveview import Page
from skep.report.swarm import frame
from skep.store.database import open_store
from skep.swarm.progress import Lane, SwarmProgress, SwarmProgressLines, progress_line
from skep.swarm.store import lock_path
from skep.testing.process import FakeEngine

MODEL = ("--model", "fake-model", "--max-tokens", "4")
NOBODY = ("--url", "http://127.0.0.1:1")
TASKS = sorted(f"t{number}" for number in range(12))
swarm = partial(call, "swarm")
refusal = partial(refused, "swarm")


@pytest.fixture(autouse=True)
def _tasks(paths, tmp_path):
    """An installation of its own, and a file with twelve tasks."""
    lines = [
        json.dumps({"id": f"t{number}", "prompt": f"count to {number}"}) for number in range(12)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=4, token_ms=1) as fake_engine:
        yield fake_engine


def runs():
    return swarm("ls", "--json", check=0).json


def ids(text):
    return [json.loads(line)["id"] for line in text.splitlines()]


@pytest.fixture
def results(tmp_path):
    """The file to which a run of tasks.jsonl writes its results."""
    return tmp_path / "tasks.results.jsonl"


def test_every_task_has_one_line_in_the_results_file(engine, results):
    done = swarm("run", "tasks.jsonl", "--url", engine.url, *MODEL, check=0)
    assert sorted(ids(results.read_text())) == TASKS
    assert done.out == ""


def test_the_end_of_a_run_says_how_many_are_done_and_where_the_results_are(engine, results):
    done = swarm("run", "tasks.jsonl", "--url", engine.url, *MODEL, check=0)
    for words in ("12 of 12 tasks done", str(results), "skep swarm show"):
        assert words in done.err


def test_a_results_file_is_overwritten_only_when_that_is_asked_for(engine, results):
    swarm("run", "tasks.jsonl", "--url", engine.url, *MODEL, check=0)
    assert "already exists" in refusal("run", "tasks.jsonl", "--url", engine.url)
    json = swarm(
        "run", "tasks.jsonl", "--overwrite", "--json", "--url", engine.url, *MODEL, check=0
    ).json
    assert (json["done"], json["output"]) == (12, str(results))
    assert sorted(ids(results.read_text())) == TASKS


def test_a_results_file_that_somebody_cut_is_completed_from_a_run_that_has_ended(engine, results):
    json = swarm("run", "tasks.jsonl", "--json", "--url", engine.url, *MODEL, check=0).json
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:3]) + '{"id": "t')
    resumed = swarm("resume", json["run"], check=0)
    assert "has ended already" in resumed.err
    assert sorted(ids(results.read_text())) == TASKS


def test_results_are_printed_in_the_order_of_the_tasks(engine):
    printed_in_order = swarm("run", "tasks.jsonl", "-o", "-", "--url", engine.url, *MODEL, check=0)
    assert ids(printed_in_order.out) == [f"t{number}" for number in range(12)]


def test_task_files_of_one_name_have_results_files_of_their_own(engine, tmp_path):
    (tmp_path / "tasks.csv").write_text("prompt\ncount to one\n")
    (tmp_path / "tasks.txt").write_text("count to two\n")
    for name in ("tasks.jsonl", "tasks.csv", "tasks.txt"):
        swarm("run", name, "--url", engine.url, *MODEL, check=0)
    lines = {
        path.name: len(path.read_text().splitlines()) for path in tmp_path.glob("*.results.jsonl")
    }
    assert lines == {
        "tasks.results.jsonl": 12,
        "tasks.csv.results.jsonl": 1,
        "tasks.txt.results.jsonl": 1,
    }


def test_a_run_resumed_later_goes_on_with_the_file_that_it_began(engine, tmp_path):
    """Runs of earlier versions wrote the results of tasks.csv to tasks.results.jsonl."""
    (tmp_path / "tasks.csv").write_text("prompt\ncount to one\n")
    old_name = tmp_path / "tasks.results.jsonl"
    refusal("run", "tasks.csv", "-o", old_name, *NOBODY, "--deadline", "200ms", code=1)
    swarm("resume", "--last", "--url", engine.url, check=0)
    assert len(old_name.read_text().splitlines()) == 1
    assert not (tmp_path / "tasks.csv.results.jsonl").exists()


def test_the_end_of_a_run_says_how_many_answers_were_cut_off(engine):
    done = swarm("run", "tasks.jsonl", "--url", engine.url, *MODEL, check=0)
    (end,) = [line for line in done.err.splitlines() if "12 of 12 tasks done" in line]
    assert end.endswith("; 12 answers were cut off at the token limit, see --max-tokens")
    assert "12 answers were cut off" in swarm("show", "--last", check=0).out


def test_the_newest_run_is_shown_with_last_as_a_word_or_an_option(run_id):
    assert swarm("show", "--last", check=0).out == swarm("show", "last", check=0).out
    assert "name one run, or --last" in refusal("show", run_id, "--last")


def test_a_dry_run_asks_for_nothing_and_keeps_nothing(engine, tmp_path):
    before = engine.state()["requests"]
    done = swarm("run", "tasks.jsonl", "--dry-run", "--url", engine.url, check=0)
    assert "12 tasks would go to" in done.err
    assert "4 slots" in done.err
    assert done.json["id"] == "t0"
    down = swarm("run", "tasks.jsonl", "--dry-run", "--json", *NOBODY).json
    assert (down["tasks"], down["endpoint"]) == (12, None)
    assert engine.state()["requests"] == before
    assert not (tmp_path / "tasks.results.jsonl").exists()
    assert runs() == []


def test_what_was_set_aside_ends_with_one_and_can_be_tried_again(engine, tmp_path):
    never = {"kind": "contains", "all": ["a word that no fake engine says"]}
    lines = [
        json.dumps({"id": "good", "prompt": "x"}),
        json.dumps({"id": "bad", "prompt": "x", "checker": never}),
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    done = swarm("run", "tasks.jsonl", "--tries", "2", "--url", engine.url, *MODEL, check=1)
    assert "1 failed" in done.err
    (run,) = runs()
    assert f"--failed-of {run['id']}" in done.err
    again = swarm(
        "run", "--failed-of", "last", "--tries", "1", "--url", engine.url, *MODEL, check=1
    )
    assert ids(again.out) == ["bad"]
    assert "rejected" in swarm("trace", "last", "bad", check=0).out


@contextmanager
def under_way(tmp_path, engine):
    """A run of another process, of which some tasks have their result and others are being
    answered.
    """
    command = [
        sys.executable,
        "-m",
        "skep",
        "swarm",
        "run",
        "tasks.jsonl",
        "--url",
        engine.url,
        "--max-tokens",
        "30",
    ]
    pipes = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    child = subprocess.Popen(command, cwd=tmp_path, **pipes)
    try:
        engine.wait_for(requests=4, running=2)
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(child):
    _, errors = child.communicate(timeout=10)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    return errors


@pytest.fixture
def slow():
    with FakeEngine(slots=2, token_ms=8) as engine:
        yield engine


def test_a_run_of_another_process_is_cancelled_and_resume_does_the_rest(slow, tmp_path):
    with under_way(tmp_path, slow) as child:
        assert "is cancelled" in swarm("cancel", "last", check=0).err
        errors = ended(child)
    (run,) = runs()
    assert run["state"] == "cancelled"
    assert f"cancelled: {run['done']} of 12" in errors
    output = tmp_path / "tasks.results.jsonl"
    lines = output.read_text().splitlines()
    assert len(lines) == run["done"] < 12
    first_line = swarm("resume", "--last", check=0).err.splitlines()[0]
    for words in (
        run["id"],
        "tasks.jsonl",
        f"{run['left']} of 12 tasks left",
        f"results in {output}",
    ):
        assert words in first_line
    assert output.read_text().splitlines()[: len(lines)] == lines
    assert sorted(ids(output.read_text())) == TASKS


def test_a_file_that_another_run_has_overwritten_is_left_until_it_is_moved_away(
    engine, slow, tmp_path
):
    """Tasks of the same ids: their lines are never mixed, and nothing is sent before the file was
    looked at.
    """
    with under_way(tmp_path, slow) as child:
        swarm("cancel", "last", check=0)
        ended(child)
    (first,) = runs()
    swarm("run", "tasks.jsonl", "--overwrite", "--url", engine.url, *MODEL, check=0)
    output = tmp_path / "tasks.results.jsonl"
    theirs = output.read_text()
    requests = slow.state()["requests"]
    message = refusal("resume", first["id"])
    assert str(output) in message
    assert "move it away" in message
    assert slow.state()["requests"] == requests
    moved = output.rename(tmp_path / "theirs.jsonl")
    json = swarm("resume", first["id"], "--json", check=0).json
    assert json["output"] == str(output)
    assert sorted(ids(output.read_text())) == TASKS
    assert moved.read_text() == theirs


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_wish_to_end_keeps_what_is_done_and_says_how_to_go_on(slow, tmp_path, number):
    with under_way(tmp_path, slow) as child:
        child.send_signal(number)
        errors = ended(child)
    (run,) = runs()
    assert f"resume with `skep swarm resume {run['id']}`" in errors
    assert run["state"] == "stopped"
    assert run["done"] == len((tmp_path / "tasks.results.jsonl").read_text().splitlines())


def printed(*words):
    return swarm(*words, check=0).out


@pytest.fixture
def run_id(paths, tmp_path):
    """Three tasks: one done, one failed after two tries, one left; its process has stopped."""
    with open_store(paths.store) as store:
        options = {"url": "http://127.0.0.1:1/v1", "output": str(tmp_path / "out.jsonl")}
        return put_swarm_run(store, "tasks.jsonl", done=1, left=1, outcome="stopped", **options)


def test_a_faulty_file_is_told_by_its_lines_before_anything_runs(paths, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "promt": "y"}\n')
    message = refusal("run", "bad.jsonl", *NOBODY)
    assert message.startswith("bad.jsonl, line 2: `promt` is not known; did you mean `prompt`?")
    assert not paths.store.exists()
    assert not (tmp_path / "bad.results.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuch.jsonl",), "nosuch.jsonl"),
        ((), "no tasks"),
        (("tasks.jsonl", "-o", "nosuch/out.jsonl"), "folder that does not exist"),
        (("tasks.jsonl", "-o", "folder"), "is a folder"),
        (("tasks.jsonl", "-o", "tasks.jsonl"), "the file with the tasks"),
        (("tasks.jsonl", "-o", "/dev/null"), "not a regular file"),
        (("tasks.jsonl", "-o", "-", "--json"), "both go to stdout"),
        (("tasks.jsonl", "--timeout", "soon"), "not a duration"),
        (("tasks.jsonl", "--deadline", "0s"), "is too short"),
        (("tasks.jsonl", "--schema", "tasks.jsonl"), "tasks.jsonl"),
        (("tasks.jsonl", "--priority", "high"), "high"),
        (("tasks.jsonl", "--key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY"),
        (("tasks.jsonl", "--url", "ftp://nowhere"), "ftp"),
        (("tasks.jsonl", "--failed-of", "last"), "does not go with"),
        (("tasks.jsonl", "--agents", "0"), "`0` should be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_is_refused_before_anything_runs(paths, tmp_path, words, message):
    (tmp_path / "folder").mkdir()
    assert message in refusal("run", *NOBODY, *words)
    assert not paths.store.exists()


def test_results_are_not_written_over_and_unknown_runs_named_with_known_ones(tmp_path, run_id):
    (tmp_path / "out.jsonl").write_text("precious\n")
    message = refusal("run", "tasks.jsonl", "-o", "out.jsonl", *NOBODY)
    assert f"skep swarm resume {run_id}" in message
    assert "--overwrite" in message
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    assert [run["id"] for run in runs()] == [run_id]
    for command in ("show", "cancel", "resume", "results", "report"):
        assert run_id in refusal(command, "19990101")
    assert "`task-2`" in refusal("trace", run_id, "task2")
    for words in ([], [run_id, "--last"]):
        assert "name one run, or --last" in refusal("resume", *words)


def test_without_any_run_the_command_that_makes_one_is_named(paths):
    for words in ("show last", "cancel last", "results last", "report last", "trace last x"):
        assert "skep swarm run" in refusal(*words.split())
    nothing = swarm("ls", check=0)
    assert (nothing.out, "no swarm runs yet" in nothing.err, runs()) == ("", True, [])
    assert not paths.store.exists()


def test_an_endpoint_that_stays_down_ends_the_run_and_not_the_journal():
    message = refusal("run", "tasks.jsonl", *NOBODY, "--deadline", "200ms", code=1)
    (run,) = runs()
    assert f"skep swarm resume {run['id']}" in message
    assert (run["state"], run["left"]) == ("stopped", 12)
    # None was: nothing is tried again.
    assert "failed" in refusal("run", "--failed-of", run["id"], *NOBODY)


def test_a_run_that_another_process_works_on_is_left_to_it(paths, run_id):
    lock = lock_path(paths, run_id)
    lock.parent.mkdir(parents=True, exist_ok=True)
    assert lock_holder(lock) is None
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        assert lock_holder(lock) == os.getpid()
        assert [(run["state"], run["error"]) for run in runs()] == [
            ("running", "waits for its endpoint")
        ]
        assert str(os.getpid()) in refusal("resume", run_id, code=1)
    assert lock_holder(lock) is None


def test_a_run_is_listed_with_its_state_and_its_file(run_id):
    page = printed("ls")
    for cell in (run_id, "stopped", "tasks.jsonl"):
        assert cell in page


def test_the_list_counts_the_tasks_of_each_run(run_id):
    (run,) = runs()
    assert (run["id"], run["done"], run["failed"], run["left"]) == (run_id, 1, 1, 1)


def test_what_failed_is_shown_before_the_counts_of_a_run(run_id):
    page = printed("show", run_id)
    assert page.index("out of memory") < page.index("1 done, 1 failed, 1 left of 3")


def test_a_run_that_stopped_is_shown_with_the_command_that_resumes_it(run_id):
    assert f"skep swarm resume {run_id}" in swarm("show", "last").err


def test_a_run_is_named_by_the_beginning_of_its_id_and_shown_with_its_failures(run_id):
    run = swarm("show", run_id[:12], "--json", check=0).json
    assert run["failures"] == [{"id": "task-1", "tries": 2, "kind": "http", "message": ERROR}]
    assert run["account"]["tasks"] == 3


def test_a_trace_has_the_messages_the_attempts_and_the_answer_in_turn(run_id):
    page = printed("trace", run_id, "task-1")
    places = [page.index(words) for words in ("hi", "rejected", "failed after 2 tries", "half")]
    assert places == sorted(places)
    assert "\x1b" not in page


def test_a_trace_as_json_has_every_attempt_and_the_result(run_id):
    trace = swarm("trace", run_id, "task-1", "--json", check=0).json
    assert [attempt["outcome"] for attempt in trace["attempts"]] == ["rejected", "failed"]
    assert trace["result"]["tries"] == 2


def test_the_trace_of_a_task_without_a_result_says_so(run_id):
    assert "no result yet" in printed("trace", "last", "task-2")


def test_results_of_a_run_are_in_the_order_of_the_tasks_or_of_the_failed_alone(run_id):
    assert ids(printed("results", run_id)) == ["task-0", "task-1"]
    assert ids(printed("results", run_id, "--failed")) == ["task-1"]


def test_the_report_of_a_run_is_a_page_that_names_it(run_id, tmp_path):
    printed("report", run_id, "-o", tmp_path / "run.html")
    assert run_id in (tmp_path / "run.html").read_text()


def test_a_run_that_stopped_can_be_cancelled(run_id):
    assert "1 done, 1 failed, 1 left" in swarm("cancel", run_id).err
    assert runs()[0]["state"] == "cancelled"


def test_a_run_killed_after_its_last_result_is_done_when_it_is_resumed(paths, tmp_path):
    """Nothing is sent: nobody listens at its URL."""
    with open_store(paths.store) as store:
        options = {"url": "http://127.0.0.1:1/v1", "output": str(tmp_path / "out.jsonl")}
        run = put_swarm_run(store, "tasks.jsonl", outcome="stopped", **options)
    assert "2 of 3 tasks done" in swarm("resume", run, check=1).err
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


PROGRESS = SwarmProgress(50, 30, 2, "4 slots", 10.0, 900, 1, 3, 4, 5.0, 80.0)
DOWN = replace(PROGRESS, down_s=12.0, down_why="connection refused")
LANES = tuple(
    Lane(agent, f"task-{agent}", agent + 0.5, agent, 1 + agent % 2) for agent in range(40)
)


def text_of(lines):
    return ["".join(text for text, _ in line) for line in lines]


def test_a_frame_fits_its_window_and_shows_how_long_an_endpoint_may_be_down():
    page = text_of(
        frame(replace(PROGRESS, lanes=LANES, last=("task-9 failed",)), Page(80, 20), "run")
    )
    assert len(page) <= 20
    assert any("30 done, 2 failed, 18 left of 50" in line for line in page)
    assert any("more at work" in line for line in page)
    assert page[-1] == "task-9 failed"
    page = " ".join(text_of(frame(DOWN, Page(80, 24), "run", deadline_s=60.0)))
    assert "has not answered for 12.0 s (connection refused)" in page
    assert "gives up in 48.0 s" in page


def test_the_speed_is_a_floor_until_an_answer_has_ended():
    exact = " ".join(text_of(frame(PROGRESS, Page(80, 24), "run")))
    floor = replace(PROGRESS, tok_s_is_floor=True)
    page = " ".join(text_of(frame(floor, Page(80, 24), "run")))
    assert "at least 80.0 tok/s" in page
    assert "at least" not in exact
    assert ", at least 80.0 tok/s," in progress_line(floor)


def test_unwatched_a_long_run_says_less_and_less_and_news_with_the_next_line():
    ticker = SwarmProgressLines()
    lines = [
        second for second in range(3600) if ticker.take(replace(PROGRESS, elapsed_s=float(second)))
    ]
    pauses = [later - earlier for earlier, later in pairwise(lines)]
    assert (min(pauses), max(pauses)) == (5, 60)
    assert len(lines) < 100
    ticker = SwarmProgressLines(60.0)
    ticker.take(PROGRESS)
    news = tuple(f"task-{number} failed" for number in range(5))
    assert ticker.take(replace(PROGRESS, elapsed_s=11.0, last=news, news=8)) == []
    first, *others, last = ticker.take(replace(PROGRESS, elapsed_s=16.0, last=news, news=8))
    assert first.startswith("3 more of this kind")
    assert (others, last[:5]) == ([*news], "32/50")
    (down,) = ticker.take(replace(DOWN, elapsed_s=31.0, last=news, news=8))
    assert down.endswith("asking again; gives up in 48.0 s")
