"""`skep swarm ask` as a user meets it: plan, run, answer, and what is refused before anything
runs.
"""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest
from in_process import call, refused

from skep.cli.swarm_session import journal
from skep.testing.process import FakeEngine

GOAL = "Say what each file is about"
FILES = "docs/*.md"
NOWHERE = "http://127.0.0.1:9"
ask = partial(call, "swarm", "ask")


@pytest.fixture
def folder(paths, tmp_path, monkeypatch):
    root = tmp_path / "work"
    (root / "docs").mkdir(parents=True)
    for name in ("bees", "wax"):
        (root / "docs" / f"{name}.md").write_text(f"# About {name}\n\nAll about {name}.\n")
    monkeypatch.chdir(root)
    return root


def engine_with(answers, folder, slots=4):
    """One that answers by what its prompt holds: the first key that is in it."""
    path = folder / "answers.jsonl"
    path.write_text(
        "\n".join(json.dumps({"prompt": key, "answer": text}) for key, text in answers)
    )
    return FakeEngine(slots=slots, token_ms=0, answers=path)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Plans, works and merges by what its prompt holds."""
    plan = {
        "tasks": [{"id": "sum", "objective": "Sum up this file", "files": ["*"], "each": True}]
    }
    answers = [
        ("bad plan please", "This is no plan at all."),
        ("You split a goal", json.dumps(plan)),
        ("You put partial answers together", "It is about bees and wax."),
        ("All about bees", "Bees, mostly."),
        ("All about wax", "Wax, mostly."),
    ]
    with engine_with(answers, tmp_path_factory.mktemp("ask")) as started:
        yield started


def test_a_goal_is_split_worked_on_and_merged_and_given_again_by_resume(folder, engine):
    done = ask(GOAL, FILES, "--url", engine.url, "--by-model", check=0)
    assert done.out == "It is about bees and wax.\n"
    assert "2 tasks, split by the model" in done.err
    assert "docs/bees.md:1-3" in done.err
    # A finished run says so, and prints what it came to; the trace has each task's messages.
    ask(GOAL, FILES, "--url", engine.url)
    done = call("swarm", "resume", "--last")
    assert (done.code, done.out) == (0, "It is about bees and wax.\n")
    traced = call("swarm", "trace", "last", "merge-1-1")
    assert "It is about bees and wax." in traced.out


def test_a_dry_run_shows_the_split_and_sends_no_task(folder, engine):
    dry = ask(
        GOAL,
        "docs/bees.md",
        "docs/wax.md",
        "--url",
        engine.url,
        "--by-model",
        "--dry-run",
        "--json",
    )
    plan = dry.json
    assert [task["files"] for task in plan["tasks"]] == [["docs/bees.md:1-3"], ["docs/wax.md:1-3"]]
    assert (plan["goal"], plan["made_by"], plan["reduce"]) == (
        GOAL,
        "orchestrator",
        {"how": "merge"},
    )
    page = ask(GOAL, FILES, "--url", engine.url, "--dry-run")
    assert (page.code, page.out) == (0, "")
    assert not list((folder.parent / "data").rglob("skep.sqlite3"))


def test_answers_are_printed_or_written_and_json_says_how_they_were_made(folder, engine):
    done = ask(GOAL, "docs/bees.md", "--url", engine.url, "-o", "answer.md", "--json", check=0)
    assert (folder / "answer.md").read_text() == "Bees, mostly.\n"
    document = done.json
    assert (document["answer"], document["complete"], document["goal"]) == (
        "Bees, mostly.",
        True,
        GOAL,
    )
    done = ask(GOAL, FILES, "--url", engine.url, "--no-merge")
    assert "is asked for a plan" not in done.err
    assert (
        done.out == "## docs/bees.md:1-3\n\nBees, mostly.\n\n## docs/wax.md:1-3\n\nWax, mostly.\n"
    )


def test_an_unusable_plan_is_asked_for_again_and_a_late_one_made_by_rule(folder, engine):
    done = ask(f"{GOAL} (bad plan please)", FILES, "--url", engine.url, "--by-model", check=0)
    assert "asking once more" in done.err
    assert "2 tasks, split by rule" in done.err
    assert "split by rule, not by the model: the answer holds no JSON" in done.out
    engine.fault(kind="hang-first")
    done = ask(
        GOAL,
        FILES,
        "--url",
        engine.url,
        "--by-model",
        "--timeout",
        "0.3s",
        "--dry-run",
        "--json",
        check=0,
    )
    plan = done.json
    assert (plan["made_by"], plan["why"]) == ("rule", "the model gave no plan within 300 ms")


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory):
    """Plans a goal that has no files, works on its tasks and merges the answers."""
    tasks = [
        {"id": "bees", "objective": "Say how bees dance"},
        {"id": "wax", "objective": "Say how wax is made"},
    ]
    answers = [
        ("Split it into at most 9 tasks", json.dumps({"tasks": tasks * 20})),
        (
            "Split it into at most 8 tasks",
            json.dumps({"tasks": [*tasks, {"id": "rest", "objective": " \n " * 8}]}),
        ),
        ("Split it into at most", json.dumps({"tasks": tasks})),
        ("You put partial answers together", "They dance and make wax."),
        ("Say how bees dance", "In eights."),
        ("Say how wax is made", "By glands."),
        ("what bees do", "Much."),
    ]
    with engine_with(answers, tmp_path_factory.mktemp("goal")) as started:
        yield started


def test_a_goal_without_files_is_planned_by_the_model_worked_on_and_merged(folder, orchestrator):
    """One orchestrator and many agents: it was refused, because no files were named."""
    done = ask("Tell what bees do", "--url", orchestrator.url, check=0)
    assert done.out == "They dance and make wax.\n"
    assert "2 tasks, split by the model" in done.err
    assert "bees: Say how bees dance;" in done.err
    done = ask("Tell what bees do", "--url", orchestrator.url, "--no-merge", check=0)
    assert (
        done.out == "## Say how bees dance\n\nIn eights.\n\n## Say how wax is made\n\nBy glands.\n"
    )
    plan = ask("Tell what bees do", "--url", orchestrator.url, "--dry-run", "--json", check=0).json
    assert [(task["id"], task["files"]) for task in plan["tasks"]] == [("bees", []), ("wax", [])]
    assert plan["made_by"] == "orchestrator"
    assert call("swarm", "resume", "--last").out == done.out


def test_a_goal_that_cannot_be_planned_is_one_task_and_says_so(folder, orchestrator):
    done = ask("Tell what bees do", "--url", orchestrator.url, "-c", "9", check=0)
    assert "asking once more" in done.err
    assert done.out.startswith("Much.\n")
    assert (
        "split by rule, not by the model: the plan has 40 tasks, and at most 9 were asked for"
        in done.out
    )


def test_a_planned_task_that_asks_for_nothing_is_never_sent(folder, orchestrator):
    """Blanks are long enough for the form of a plan: tasks without a word went to the model, and
    were answered.
    """
    done = ask("Tell what bees do", "--url", orchestrator.url, "-c", "8", check=0)
    assert (
        "the model's plan cannot be used (task `rest` has no objective): asking once more"
        in done.err
    )
    assert done.out.startswith("Much.\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["  ", FILES], "the goal is empty"),
        ([GOAL, "--chunk-tokens", "500"], "--chunk-tokens cuts files, and no files are named"),
        ([GOAL, "*.absent"], "matches no text file"),
        ([GOAL, "../*"], "matches no text file"),
        ([GOAL, FILES, "-o", "absent/answer.md"], "folder that does not exist"),
        ([GOAL, FILES, "--deadline", "0s"], "is too short"),
        ([GOAL, FILES, "--key-env", "SKEP_ABSENT_KEY"], "is not set"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(folder, args, message):
    assert message in refused("swarm", "ask", *args, "--url", NOWHERE)


def test_files_of_another_folder_may_be_named_in_ones_own_shell(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    plan = ask(GOAL, "../docs", "--url", NOWHERE, "--dry-run", "--json", check=0).json
    assert {ref for task in plan["tasks"] for ref in task["files"]} == {
        "../docs/bees.md:1-3",
        "../docs/wax.md:1-3",
    }


def test_an_endpoint_that_stays_down_gives_no_plan_and_leaves_a_run_to_be_resumed(folder):
    words = ("swarm", "ask", GOAL, FILES, "--url", NOWHERE)
    refused(*words, "--by-model", code=1)
    assert "skep swarm resume" in refused(*words, "--deadline", "0.2s", code=1)


def test_a_run_killed_in_its_merge_goes_on_with_the_merge_alone(folder, tmp_path):
    """What the tasks came to is in the journal: none of them is asked again."""
    merged = (
        "It is about bees, and about wax, and about all that the two have to do with each other "
        "in a hive."
    )
    answers = [
        ("You put partial answers", merged),
        ("bees", "Bees, mostly."),
        ("wax", "Wax, mostly."),
    ]
    argv = [sys.executable, "-m", "skep", "swarm", "ask", GOAL, FILES]
    with engine_with(answers, tmp_path, slots=1) as engine:
        # Longer than any answer but the merged one.
        engine.fault(kind="hang-mid", after_tokens=12, times=None)
        with subprocess.Popen([*argv, "--url", engine.url], stderr=subprocess.DEVNULL) as process:
            engine.wait_for(timeout_s=60, requests=3)
            process.kill()
        engine.fault(kind="none")
        done = call("swarm", "resume", "--last")
        assert (done.code, done.out) == (0, f"{merged}\n"), done
        assert engine.state()["requests"] == 4
    with journal() as swarm:
        run = swarm.run("last")
        assert [result.task for result in swarm.results(run.id)] == [
            "docs/bees.md:1-3",
            "docs/wax.md:1-3",
            "merge-1-1",
        ]


def test_what_a_run_keeps_holds_no_key(folder, engine, paths, monkeypatch):
    monkeypatch.setenv("OWN_KEY", "very-secret")
    ask(GOAL, "docs/wax.md", "--url", engine.url, "--key-env", "OWN_KEY", check=0)
    with closing(sqlite3.connect(paths.store)) as database:
        dump = "\n".join(database.iterdump())
    assert "OWN_KEY" in dump
    assert "very-secret" not in dump
