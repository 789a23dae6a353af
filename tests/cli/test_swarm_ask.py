"""`skep swarm ask` as a user meets it: plan, run, answer, and what is refused before anything runs."""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from skep.cli.main import app_of
from skep.cli.swarm_places import journal
from skep.cli.swarm_plan_file import edited
from skep.errors import SkepError, UserError
from skep.swarm.ask.plan import Plan, PlanTask, plan_from_json
from skep.testing.process import FakeEngine

GOAL = "Say what each file is about"
APP = app_of(["swarm", "swarm_ask"])
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
    plan = {
        "tasks": [{"id": "sum", "objective": "Sum up this file", "files": ["*"], "each": True}],
        "reduce": {"how": "merge", "instruction": "Name both."},
    }
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


def test_a_goal_is_planned_worked_on_and_merged(folder, engine):
    done = ask(GOAL, "--files", "docs/*.md", "--url", engine.url)
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert done.stdout == "It is about bees and wax.\n"
    assert "2 tasks, planned by the orchestrator" in done.stderr
    assert "docs/bees.md:1-3" in done.stderr


def test_a_plan_is_printed_edited_and_carried_out(folder, engine):
    shown = ask(GOAL, "--files", "docs/*.md", "--url", engine.url, "--plan-only")
    plan = json.loads(shown.stdout)
    assert [task["files"] for task in plan["tasks"]] == [["docs/bees.md:1-3"], ["docs/wax.md:1-3"]]
    plan["reduce"] = {"how": "concat"}
    plan["tasks"].pop()
    (folder / "plan.json").write_text(json.dumps(plan))
    done = ask("--plan", "plan.json", "--url", engine.url, "-o", "answer.md", "--json")
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert (folder / "answer.md").read_text() == "Bees, mostly.\n"
    document = json.loads(done.stdout)
    assert (document["answer"], document["complete"], document["goal"]) == ("Bees, mostly.", True, GOAL)


def test_a_toml_plan_is_carried_out(folder, engine):
    (folder / "plan.toml").write_text('[[tasks]]\nobjective = "Sum up"\nfiles = ["docs/wax.md"]\n')
    done = ask("Sum up", "--plan", "plan.toml", "--url", engine.url)
    assert (done.exit_code, done.stdout) == (0, "Wax, mostly.\n")


def test_a_plan_that_cannot_be_used_is_asked_for_again_and_then_made_by_rule(folder, engine):
    done = ask(f"{GOAL} (bad plan please)", "--files", "docs/*.md", "--url", engine.url)
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert "asked once more" in done.stderr
    assert "planned by rule, not by the orchestrator" in done.stderr
    assert "planned without an orchestrator: the answer holds no JSON" in done.stdout


def test_a_plan_that_takes_too_long_is_made_by_rule(folder, engine):
    engine.fault(kind="hang-first")
    done = ask(GOAL, "--files", "docs/*.md", "--url", engine.url, "--plan-timeout", "0.3s", "--plan-only")
    assert done.exit_code == 0, (done.exception, done.stderr)
    plan = json.loads(done.stdout)
    assert (plan["made_by"], plan["why"]) == ("fallback", "the orchestrator gave no plan within 300 ms")


def test_a_tiny_model_is_asked_for_no_plan_and_no_merge_unless_it_is_meant(folder):
    with FakeEngine(slots=2, token_ms=0, model="bee-135m") as tiny:
        asked = [GOAL, "--files", "docs/*.md", "--url", tiny.url, "--plan-only"]
        by_rule, by_model = ask(*asked), ask(*asked, "--by-model")
    plan = json.loads(by_rule.stdout)
    assert plan["reduce"] == {"how": "concat"}
    assert plan["why"].startswith("bee-135m has 135M parameters, too few to plan")
    assert "is asked for a plan" not in by_rule.stderr
    assert "bee-135m at" in by_model.stderr


def test_by_rule_no_model_is_asked_for_a_plan(folder, engine):
    done = ask(GOAL, "--files", "docs/*.md", "--url", engine.url, "--by-rule", "--plan-only")
    assert json.loads(done.stdout)["made_by"] == "fallback"
    assert "is asked for a plan" not in done.stderr


def test_an_answer_is_given_again_by_resume(folder, engine):
    """A finished run says so, and prints what it came to; the trace has each task's messages."""
    ask(GOAL, "--files", "docs/*.md", "--url", engine.url)
    done = CliRunner().invoke(APP, ["swarm", "resume", "--last"])
    assert (done.exit_code, done.stdout) == (0, "It is about bees and wax.\n")
    traced = CliRunner().invoke(APP, ["swarm", "trace", "last", "merge-1-1"])
    assert "It is about bees and wax." in traced.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "there is no goal"),
        (["  "], "there is no goal"),
        (["x" * 20_001], "20,001 characters"),
        ([GOAL, "--files", "*.absent"], "names no text file"),
        ([GOAL, "--files", "../*"], "leads out"),
        ([GOAL, "--root", "absent"], "is not a folder"),
        ([GOAL, "--tools", "shell"], "--tools `shell` is unknown"),
        ([GOAL, "--plan", "absent.json"], "no such file"),
        ([GOAL, "--plan", "broken.json"], "is not JSON"),
        ([GOAL, "--plan", "broken.toml"], "is not TOML"),
        ([GOAL, "--plan", "broken.json", "--by-rule"], "two plans"),
        ([GOAL, "--plan", "wrong.json"], "the plan cannot be run"),
        ([GOAL, "-o", "absent/answer.md"], "folder that does not exist"),
        ([GOAL, "--plan-timeout", "0s"], "leaves no time"),
        ([GOAL, "--report", "report.pdf"], "neither .html nor .svg"),
        ([GOAL, "--deadline", "0s"], "leaves no time"),
        ([GOAL, "--by-rule", "--edit"], "the plan cannot be edited"),
        ([GOAL, "--key-env", "SKEP_ABSENT_KEY"], "is not set"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(folder, args, said):
    (folder / "broken.json").write_text('{"tasks": [')
    (folder / "broken.toml").write_text("tasks = = 1")
    (folder / "wrong.json").write_text('{"tasks": [{"id": "a", "objective": "x", "fils": []}]}')
    error = refused(*args, "--url", NOWHERE)
    assert said in error.message
    assert error.exit_code == 2


def test_an_endpoint_that_is_down_gives_no_plan(folder):
    error = refused(GOAL, "--url", NOWHERE)
    assert error.exit_code == 1


def test_an_endpoint_that_stays_down_leaves_the_run_to_be_resumed(folder):
    error = refused(GOAL, "--by-rule", "--url", NOWHERE, "--deadline", "0.2s")
    assert error.exit_code == 1
    assert "skep swarm resume" in error.hint


def test_an_editor_can_change_the_plan(tmp_path, monkeypatch):
    """A real program, at a terminal; one that leaves nonsense behind is asked about, and a no ends it."""
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\np = pathlib.Path(sys.argv[1])\np.write_text(p.read_text().replace('x', 'y'))\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.delenv("VISUAL", raising=False)
    leader, follower = os.openpty()
    with os.fdopen(follower) as terminal, os.fdopen(leader, "w") as typed:
        monkeypatch.setattr(sys, "stdin", terminal)
        plan = edited(Plan("g", (PlanTask("a", "x"),)), plan_from_json)
        assert [task.objective for task in plan.tasks] == ["y"]
        typed.write("n\n")
        typed.flush()
        with pytest.raises(UserError, match="the same work"):
            edited(Plan("g", (PlanTask("a", "x"), PlanTask("b", "y"))), plan_from_json)


@contextmanager
def at_a_terminal(env, *args):
    """A real process whose stdin and stderr are a terminal. Gives it, and what reads the terminal until a text."""
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "skep", "swarm", "ask", *args],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**env, "TERM": "dumb", "EDITOR": "sed -i s/bees.md/wax.md/"},
    )
    os.close(follower)
    shown = bytearray()

    def until(text):
        while text.encode() not in shown:
            assert select.select([leader], [], [], 20)[0], shown.decode()
            shown.extend(os.read(leader, 4096))
        del shown[: shown.index(text.encode()) + len(text)]

    with process:
        try:
            yield process, leader, until
        finally:
            process.kill()
            os.close(leader)


def test_on_a_terminal_the_plan_is_asked_about_and_can_be_edited(folder, engine, env):
    args = ("--by-rule", GOAL, "--files", "docs/bees.md", "--url", engine.url)
    with at_a_terminal(env, *args) as (process, leader, until):
        until("run it? [Y/n/e(dit)] ")
        os.write(leader, b"e\n")
        until("docs/wax.md:1-3")
        until("run it? [Y/n/e(dit)] ")
        os.write(leader, b"\n")
        assert process.stdout.read() == b"Wax, mostly.\n"
        assert process.wait(10) == 0


def test_what_is_no_answer_is_asked_again_and_ctrl_c_runs_nothing(folder, engine, env):
    """Reading is broken off although an event loop has run before: it had left the signal restarting reads."""
    asked = engine.state()["requests"]
    with at_a_terminal(env, "--by-rule", GOAL, "--url", engine.url) as (process, leader, until):
        until("run it? [Y/n/e(dit)] ")
        os.write(leader, b"maybe\n")
        until("y, n or e? ")
        process.send_signal(signal.SIGINT)
        until("nothing was run")
        assert process.wait(10) == 130
    assert engine.state()["requests"] == asked


def test_a_run_killed_in_its_merge_goes_on_with_the_merge_alone(folder, engine, env):
    """What the agents said is in the journal: none of them is asked again."""
    (folder / "plan.json").write_text('{"tasks": [{"objective": "Sum up", "files": ["docs/*.md"], "each": true}]}')
    with FakeEngine(slots=1, token_ms=0) as merger:
        merger.fault(kind="hang-first")
        urls = ["--url", engine.url, "--orchestrator-url", merger.url]
        argv = [sys.executable, "-m", "skep", "swarm", "ask", GOAL, "--plan", "plan.json", "--files", "docs/*.md"]
        with subprocess.Popen([*argv, *urls], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            merger.wait_for(running=1)
            process.kill()
        asked = engine.state()["output_tokens"]
        done = CliRunner().invoke(APP, ["swarm", "resume", "--last"])
        assert done.exit_code == 0, (done.exception, done.stderr)
        assert engine.state()["output_tokens"] == asked
    with journal() as swarm:
        run = swarm.run("last")
        assert [result.task for result in swarm.results(run.id)] == ["1/1", "1/2", "merge-1-1"]


def test_what_a_run_keeps_holds_no_key(folder, engine, env, monkeypatch):
    monkeypatch.setenv("OWN_KEY", "very-secret")
    done = ask(GOAL, "--by-rule", "--files", "docs/wax.md", "--url", engine.url, "--key-env", "OWN_KEY")
    assert done.exit_code == 0, (done.exception, done.stderr)
    (store,) = (folder.parent / "data").rglob("skep.sqlite3")
    with sqlite3.connect(store) as database:
        dump = "\n".join(database.iterdump())
    database.close()
    assert "OWN_KEY" in dump
    assert "very-secret" not in dump
