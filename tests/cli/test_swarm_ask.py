"""`skep swarm ask` as a user meets it: plan, run, answer, and what is refused before anything runs."""

import json
import sqlite3
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skep.cli.main import app_of
from skep.cli.swarm_journal import journal
from skep.errors import SkepError
from skep.testing.process import FakeEngine

GOAL = "Say what each file is about"
FILES = "docs/*.md"
APP = app_of(["swarm"])
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def folder(tmp_path, monkeypatch, env):
    root = tmp_path / "work"
    (root / "docs").mkdir(parents=True)
    for name in ("bees", "wax"):
        (root / "docs" / f"{name}.md").write_text(f"# About {name}\n\nAll about {name}.\n")
    monkeypatch.chdir(root)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("SKEP_API_KEY", raising=False)
    monkeypatch.delenv("SKEP_URL", raising=False)
    return root


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Plans, works and merges by what its prompt holds."""
    plan = {"tasks": [{"id": "sum", "objective": "Sum up this file", "files": ["*"], "each": True}]}
    answers = [
        ("bad plan please", "This is no plan at all."),
        ("You split a goal", json.dumps(plan)),
        ("You put partial answers together", "It is about bees and wax."),
        ("All about bees", "Bees, mostly."),
        ("All about wax", "Wax, mostly."),
    ]
    path = tmp_path_factory.mktemp("ask") / "answers.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": key, "answer": text}) for key, text in answers))
    with FakeEngine(slots=4, token_ms=0, answers=path) as started:
        yield started


def ask(*args):
    return CliRunner().invoke(APP, ["swarm", "ask", *map(str, args)], catch_exceptions=True)


def refused(*args):
    done = ask(*args)
    assert isinstance(done.exception, SkepError), (done.exception, done.output)
    return done.exception


def test_a_goal_is_split_worked_on_and_merged(folder, engine):
    done = ask(GOAL, FILES, "--url", engine.url)
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert done.stdout == "It is about bees and wax.\n"
    assert "2 tasks, split by the model" in done.stderr
    assert "docs/bees.md:1-3" in done.stderr


def test_a_dry_run_shows_the_split_and_sends_no_task(folder, engine):
    dry = ask(GOAL, "docs/bees.md", "docs/wax.md", "--url", engine.url, "--dry-run", "--json")
    plan = json.loads(dry.stdout)
    assert [task["files"] for task in plan["tasks"]] == [["docs/bees.md:1-3"], ["docs/wax.md:1-3"]]
    assert (plan["goal"], plan["made_by"], plan["reduce"]) == (GOAL, "orchestrator", {"how": "merge"})
    shown = ask(GOAL, FILES, "--url", engine.url, "--dry-run")
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert not list((folder.parent / "data").rglob("skep.sqlite3"))


def test_an_answer_goes_to_its_file_and_json_says_how_it_was_made(folder, engine):
    done = ask(GOAL, "--files", "docs/bees.md", "--url", engine.url, "-o", "answer.md", "--json")
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert (folder / "answer.md").read_text() == "Bees, mostly.\n"
    document = json.loads(done.stdout)
    assert (document["answer"], document["complete"], document["goal"]) == ("Bees, mostly.", True, GOAL)


def test_without_a_merge_the_answers_stand_one_after_the_other(folder, engine):
    done = ask(GOAL, FILES, "--url", engine.url, "--by-rule", "--no-merge")
    assert done.stdout == "## docs/bees.md:1-3\n\nBees, mostly.\n\n## docs/wax.md:1-3\n\nWax, mostly.\n"


def test_a_plan_that_cannot_be_used_is_asked_for_again_and_then_made_by_rule(folder, engine):
    done = ask(f"{GOAL} (bad plan please)", FILES, "--url", engine.url)
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert "asked once more" in done.stderr
    assert "2 tasks, split by rule" in done.stderr
    assert "split by rule, not by the model: the answer holds no JSON" in done.stdout


def test_a_plan_that_takes_too_long_is_made_by_rule(folder, engine):
    engine.fault(kind="hang-first")
    done = ask(GOAL, FILES, "--url", engine.url, "--plan-timeout", "0.3s", "--dry-run", "--json")
    assert done.exit_code == 0, (done.exception, done.stderr)
    plan = json.loads(done.stdout)
    assert (plan["made_by"], plan["why"]) == ("fallback", "the model gave no plan within 300 ms")


def test_a_tiny_model_is_asked_for_no_plan_and_no_merge_unless_it_is_meant(folder):
    with FakeEngine(slots=2, token_ms=0, model="bee-135m") as tiny:
        asked = [GOAL, FILES, "--url", tiny.url, "--dry-run", "--json"]
        by_rule, by_model, merged = ask(*asked), ask(*asked, "--by-model"), ask(*asked, "--merge")
    plan = json.loads(by_rule.stdout)
    assert plan["reduce"] == {"how": "concat"}
    assert plan["why"].startswith("bee-135m has 135M parameters, too few to plan")
    assert "is asked for a plan" not in by_rule.stderr
    assert "bee-135m at" in by_model.stderr
    assert json.loads(merged.stdout)["reduce"] == {"how": "merge"}


def test_by_rule_no_model_is_asked_for_a_plan(folder, engine):
    done = ask(GOAL, FILES, "--url", engine.url, "--by-rule", "--dry-run", "--json")
    assert json.loads(done.stdout)["made_by"] == "fallback"
    assert "is asked for a plan" not in done.stderr


def test_an_answer_is_given_again_by_resume(folder, engine):
    """A finished run says so, and prints what it came to; the trace has each task's messages."""
    ask(GOAL, FILES, "--url", engine.url)
    done = CliRunner().invoke(APP, ["swarm", "resume", "--last"])
    assert (done.exit_code, done.stdout) == (0, "It is about bees and wax.\n")
    traced = CliRunner().invoke(APP, ["swarm", "trace", "last", "merge-1-1"])
    assert "It is about bees and wax." in traced.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["  ", FILES], "there is no goal"),
        (["x" * 20_001, FILES], "20,001 characters"),
        ([GOAL], "no files are named"),
        ([GOAL, "*.absent"], "names no text file"),
        ([GOAL, "../*"], "leads out"),
        ([GOAL, FILES, "--root", "absent"], "is not a folder"),
        ([GOAL, FILES, "-o", "absent/answer.md"], "folder that does not exist"),
        ([GOAL, FILES, "--plan-timeout", "0s"], "leaves no time"),
        ([GOAL, FILES, "--report", "report.pdf"], "neither .html nor .svg"),
        ([GOAL, FILES, "--deadline", "0s"], "leaves no time"),
        ([GOAL, FILES, "--key-env", "SKEP_ABSENT_KEY"], "is not set"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(folder, args, said):
    error = refused(*args, "--url", NOWHERE)
    assert said in error.message
    assert error.exit_code == 2


def test_an_endpoint_that_is_down_gives_no_plan(folder):
    error = refused(GOAL, FILES, "--url", NOWHERE)
    assert error.exit_code == 1


def test_an_endpoint_that_stays_down_leaves_the_run_to_be_resumed(folder):
    error = refused(GOAL, FILES, "--by-rule", "--url", NOWHERE, "--deadline", "0.2s")
    assert error.exit_code == 1
    assert "skep swarm resume" in error.hint


def test_a_run_killed_in_its_merge_goes_on_with_the_merge_alone(folder, env, tmp_path):
    """What the tasks came to is in the journal: none of them is asked again."""
    merged = "It is about bees, and about wax, and about all that the two have to do with each other in a hive."
    answers = [("You put partial answers", merged), ("bees", "Bees, mostly."), ("wax", "Wax, mostly.")]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": key, "answer": text}) for key, text in answers))
    argv = [sys.executable, "-m", "skep", "swarm", "ask", GOAL, FILES, "--by-rule"]
    with FakeEngine(slots=1, token_ms=0, answers=path) as engine:
        engine.fault(kind="hang-mid", after_tokens=12)
        with subprocess.Popen([*argv, "--url", engine.url], env=env, stderr=subprocess.DEVNULL) as process:
            engine.wait_for(timeout_s=60, requests=3)
            process.kill()
        done = CliRunner().invoke(APP, ["swarm", "resume", "--last"])
        assert (done.exit_code, done.stdout) == (0, f"{merged}\n"), (done.exception, done.stderr)
        assert engine.state()["requests"] == 4
    with journal() as swarm:
        run = swarm.run("last")
        assert [result.task for result in swarm.results(run.id)] == ["bees.md:1-3", "wax.md:1-3", "merge-1-1"]


def test_what_a_run_keeps_holds_no_key(folder, engine, env, monkeypatch):
    monkeypatch.setenv("OWN_KEY", "very-secret")
    done = ask(GOAL, "docs/wax.md", "--by-rule", "--url", engine.url, "--key-env", "OWN_KEY")
    assert done.exit_code == 0, (done.exception, done.stderr)
    (store,) = (folder.parent / "data").rglob("skep.sqlite3")
    with sqlite3.connect(store) as database:
        dump = "\n".join(database.iterdump())
    database.close()
    assert "OWN_KEY" in dump
    assert "very-secret" not in dump
