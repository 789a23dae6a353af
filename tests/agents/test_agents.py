"""Real coding agents at work through the gateway, started by `skep agent`, in front of an engine
that follows a script.

`make test-agents` installs them and runs this. A client that is not installed is left out.
"""

import contextlib
import shutil

import pytest
from agent_clients import EmbeddedBox, ScriptedBox, is_installed

pytestmark = [pytest.mark.agents, pytest.mark.timeout(240)]

WITH_TOOLS = ("claude", "codex", "opencode", "qwen", "crush", "pi", "cline")
CLIENTS = (*WITH_TOOLS, "aider")  # which edits files by what the model says
WITH_SUB_AGENTS = ("claude", "codex", "opencode", "qwen")


def clients(*names, cannot=()):
    """Parametrize by these clients. `cannot`: by name, why one does not come that far."""

    def marks(name):
        if not is_installed(name):
            return [pytest.mark.skip(reason=f"{name} is not installed")]
        if name not in cannot:
            return []
        return [pytest.mark.xfail(reason=cannot[name], raises=AssertionError, strict=True)]

    return pytest.mark.parametrize(
        "client", [pytest.param(name, marks=marks(name)) for name in names]
    )


@pytest.fixture
def make_box(tmp_path):
    boxes = []

    def make(**options):
        boxes.append(ScriptedBox(tmp_path, **options))
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


STOPS_AT_OVERFLOW = {
    "codex": "Codex 0.169 ends at a prompt that is too long, and shortens none, in `codex exec`",
}


@pytest.mark.parametrize("engine", ["vllm", "llama-server"])
@clients(*WITH_TOOLS, cannot=STOPS_AT_OVERFLOW)
def test_an_agent_whose_prompt_is_too_long_shortens_it_and_goes_on(make_box, client, engine):
    """The engine refuses the second turn once, in its own words."""
    box = make_box(speaks=engine)
    ended = box.run(client, "GROW seq 1 2000")
    rules = box.rules()
    assert rules.get("overflow-later") == 1, (rules, ended.text)
    assert "summary" in rules or "result" in rules, (rules, ended.text)


SAYS_WHY = {"codex": "ran out of room in the model's context window"}


@pytest.mark.parametrize("engine", ["vllm", "llama-server"])
@clients(*SAYS_WHY)
def test_an_agent_that_stops_at_a_prompt_that_is_too_long_says_so(make_box, client, engine):
    """It has understood the engine's words as the gateway told them."""
    box = make_box(speaks=engine)
    ended = box.run(client, "GROW seq 1 2000")
    assert box.rules().get("overflow-later") == 1, (box.rules(), ended.text)
    assert SAYS_WHY[client] in ended.text


SAME_CALLS = {
    "cline": "Cline 3.0.65 ends a run in which the model makes the same call again and again",
}


FILLS_AT_MOST = 60  # by the script; fewer where the order to fill is no longer in the prompt


@clients(*WITH_TOOLS, cannot=SAME_CALLS)
def test_an_agent_shortens_its_conversation_before_the_context_ends(make_box, client):
    """Each turn adds the output of a command, until the agent asks for a summary, or drops old
    outputs, and goes on.
    """
    box = make_box(ctx=60_000)
    ended = box.run(client, "FILL seq 1 4000")
    rules = box.rules()
    assert rules.get("summary", 0) >= 1 or rules["fill"] < FILLS_AT_MOST, (rules, ended.text)
    assert rules.get("result", 0) + rules.get("answer", 0) >= 1, rules
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
    "qwen": "qwen-code 0.24.4 gives up at a stream that was cut, with the gateway and without",
    "cline": "Cline 3.0.65 gives up at an error within a stream",
}


@clients(*WITH_TOOLS, cannot=CUT_FOR_GOOD)
def test_an_agent_comes_back_after_a_stream_that_was_cut(make_box, client):
    box = make_box()
    ended = box.run(client, "CUT it.")
    assert box.rules()["cut"] == 1
    assert ended.code == 0, ended.text
    assert "DONE" in ended.text


AFTER_A_WRONG_KEY = {
    "aider": "aider 0.86.2 ends with 0 after an error, too",
}


@clients(*CLIENTS, cannot=AFTER_A_WRONG_KEY)
def test_a_wrong_key_is_told_at_once(make_box, client):
    """The agent itself asks with it; `skep agent` would have refused to start it."""
    box = make_box()
    ended = box.start_in_shell(client, "Say it.", key="k-wrong").wait(60)
    assert ended.code != 0, ended.text
    assert ("logged in" if client == "claude" else "key") in ended.text.lower(), ended.text
    assert box.rules() == {}


@clients(*WITH_TOOLS)
def test_an_agent_goes_on_after_the_engine_was_restarted(make_box, client):
    """The engine dies while it computes an answer, and comes back at the same place two seconds
    later.
    """
    box = make_box()
    run = box.start(client, "SLOWLY green")
    box.engine.wait_for(30, running=1)
    box.restart_engine()
    ended = run.wait()
    assert ended.code == 0, ended.text
    assert "DONE" in ended.text


@pytest.mark.timeout(600)
@clients("codex", "opencode", "pi", "aider")
def test_an_agent_reads_the_answer_of_a_real_engine(tmp_path, client):
    """Of llama.cpp with a model of 135M and 8,192 tokens. The prompts of Claude Code and qwen-code
    are longer than that, and Cline goes on until the model has called a tool, which such a small
    one never does."""
    with contextlib.closing(EmbeddedBox(tmp_path)) as box:
        ended = box.start(client, "Say hello.").wait(400)
        outcomes = box.outcomes()
    assert ended.code == 0, ended.text
    # Codex may leave before the last line.
    assert "answered" in outcomes or outcomes == {"hung_up"}, ended.text
