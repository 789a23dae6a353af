"""Real coding agents at work through the gateway, started by `skep agent`, in front of an engine that follows a script.

`make test-agents` installs them and runs this. A client that is not installed is left out.
"""

import shutil

import pytest
from agent_clients import Box, is_installed

pytestmark = [pytest.mark.agents, pytest.mark.timeout(240)]

WITH_TOOLS = ("claude", "codex", "opencode", "qwen", "crush", "pi", "cline")
CLIENTS = (*WITH_TOOLS, "aider")  # which edits files by what the model says
WITH_SUB_AGENTS = ("claude", "codex", "opencode", "qwen")


def clients(*names, cannot=()):
    """Parametrize by these clients. `cannot`: by name, why one does not come that far."""

    def marks(name):
        if not is_installed(name):
            return [pytest.mark.skip(reason=f"{name} is not installed")]
        return [pytest.mark.xfail(reason=cannot[name], strict=True)] if name in cannot else []

    return pytest.mark.parametrize("client", [pytest.param(name, marks=marks(name)) for name in names])


@pytest.fixture
def make_box(tmp_path):
    boxes = []

    def make(**options):
        boxes.append(Box(tmp_path, **options))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()
    shutil.rmtree(tmp_path / "home", ignore_errors=True)


def order(box, words="WRITE"):
    return f"{words} {box.work}/note.txt hello"


@clients(*CLIENTS)
def test_an_agent_writes_a_file(make_box, client):
    """By its own tool, or by a text that it understands as a file."""
    box = make_box()
    ended = box.run(client, order(box))
    assert (box.work / "note.txt").read_text().strip() == "hello", ended.text
    assert ended.code == 0, ended.text
    if client in WITH_TOOLS:
        assert (box.rules()["write"], box.rules()["result"]) == (1, 1)


@clients(*WITH_SUB_AGENTS)
def test_a_sub_agent_does_a_part_of_the_work(make_box, client):
    """It has a conversation of its own, and the first one goes on with its result."""
    box = make_box()
    ended = box.run(client, order(box, "DELEGATE WRITE"))
    assert (box.work / "note.txt").read_text() == "hello", ended.text
    assert (ended.code, box.rules()["delegate"], box.rules()["result"]) == (0, 1, 2)


@clients(*WITH_TOOLS)
@pytest.mark.parametrize("engine", ["vllm", "llama-server"])
def test_a_conversation_beyond_the_context_is_shortened_or_the_agent_says_why_it_stops(make_box, client, engine):
    """The engine refuses the second turn once, in its own words."""
    box = make_box(speaks=engine)
    ended = box.run(client, "GROW seq 1 2000")
    assert box.rules().get("overflow-later") == 1, (box.rules(), ended.text)
    assert "DONE" in ended.text or box.rules().get("summary") or "context" in ended.text.lower(), ended.text


# Cline ends a run in which the model calls the same tool with the same arguments again and again.
@clients("claude", "codex", "opencode", "qwen", "crush", "pi")
def test_an_agent_shortens_its_conversation_before_the_context_ends(make_box, client):
    """Each turn adds the output of a command, until the agent asks for a summary and goes on with that."""
    box = make_box(ctx=60_000)
    ended = box.run(client, "FILL seq 1 4000")
    rules = box.rules()
    assert rules.get("summary", 0) >= 1, (rules, ended.text)
    assert rules.get("result", 0) + rules.get("answer", 0) >= 1, rules  # with the summary, the work was ended
    assert ended.code == 0, ended.text


@clients(*CLIENTS)
def test_an_agent_waits_thirty_seconds_for_a_slot(make_box, client):
    box = make_box(slots=1)
    held = box.hold_slot()
    ended = box.run(client, order(box))
    held.join(10)
    assert ended.code == 0, ended.text
    assert (box.work / "note.txt").exists()
    assert ended.took_s > 25


CUT_FOR_GOOD = {
    "qwen": "qwen-code 0.15.10 gives up at a stream that was cut, with the gateway and without",
    "cline": "Cline 3.0.65 gives up at an error within a stream",
}


@clients(*WITH_TOOLS, cannot=CUT_FOR_GOOD)
def test_an_agent_comes_back_after_a_stream_that_was_cut(make_box, client):
    box = make_box()
    ended = box.run(client, "CUT it.")
    assert box.rules()["cut"] == 1
    assert ended.code == 0, ended.text
    assert "DONE" in ended.text


@clients(*CLIENTS)
def test_a_wrong_key_is_told_at_once(make_box, client):
    box = make_box()
    ended = box.run(client, "Say it.", key="k-wrong")
    assert ended.code != 0, ended.text
    assert ended.took_s < 60
    assert "key" in ended.text.lower(), ended.text
    assert box.rules() == {}


@clients(*WITH_TOOLS)
def test_an_agent_goes_on_after_the_engine_was_restarted(make_box, client):
    """The engine dies while it computes an answer, and comes back at the same place two seconds later."""
    box = make_box()
    run = box.start(client, "SLOWLY green")
    box.engine.wait_for(30, running=1)
    box.restart_engine()
    ended = run.wait()
    assert ended.code == 0, ended.text
    assert "DONE" in ended.text
