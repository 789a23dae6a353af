"""Who is talking: sessions keep their replica and share slots fairly, whatever name their client
gives them.
"""

import json
import threading
from collections import Counter

import pytest
from gateway_client import MODEL, call, post, told, until

from skep.gateway.body_inspection import inspect_body
from skep.gateway.session_names import (
    agent_of_headers,
    conversation_in,
    session_digest,
    session_of_headers,
)

SESSIONS = 8
TURNS = 12
NAMED = [
    "x-skep-session",
    "x-claude-code-session-id",
    "session-id",
    "x-session-id",
    "x-session-affinity",
    "agent-session-id",
]
BILLING = "x-anthropic-billing-header: cc_version=2.1.327; cc_entrypoint=cli; cch={:05x};"


def messages_document(session, turn, *, first="x-anthropic-billing-header: cch=0;"):
    """A turn of a session as Claude Code sends it;
    all sessions begin with the same system prompt.
    """
    conversation = [{"role": "user", "content": [{"type": "text", "text": f"task of {session}"}]}]
    for number in range(turn):
        conversation.append({"role": "assistant", "content": f"step {number} of {session}"})
        conversation.append({"role": "user", "content": "go on " * 200})
    system = [
        {"type": "text", "text": first},
        {"type": "text", "text": "You are an agent. " * 1200},
    ]
    return {"model": MODEL, "max_tokens": 3, "system": system, "messages": conversation}


def chat_document(session, turn):
    document = messages_document(session, turn)
    system = {"role": "system", "content": "You are an agent. " * 1200}
    return {"model": MODEL, "max_tokens": 3, "messages": [system, *document["messages"]]}


def returns_to_its_replica(gateway, ask):
    """Return which share of the turns after the first came to the replica of the turn before."""
    homes = {}
    counter = Counter()
    for turn in range(TURNS):
        for session in range(SESSIONS):
            replica = told(ask(session, turn), "replica")
            if session in homes:
                counter[replica == homes[session]] += 1
            homes[session] = replica
    assert len(set(homes.values())) == 2  # both serve
    return counter[True] / counter.total()


@pytest.mark.parametrize("name", NAMED)
def test_a_named_session_comes_back_to_its_replica(serving, name):
    gateway, *_ = serving({}, {}, slots=4)

    def ask(session, turn):
        header = {name.replace("-", "_"): f"session {session}"}
        return post(gateway, chat_document(f"one and the same {turn}", turn), **header)[1]

    assert returns_to_its_replica(gateway, ask) == 1.0


@pytest.mark.parametrize(
    "field",
    [lambda name: {"prompt_cache_key": name}, lambda name: {"metadata": {"user_id": name}}],
)
def test_a_session_that_is_named_in_the_body_comes_back_to_its_replica(serving, field):
    gateway, *_ = serving({}, {}, slots=4)

    def ask(session, turn):
        return post(
            gateway, {**chat_document("the same", turn), **field(f'{{"session": "{session}"}}')}
        )[1]

    assert returns_to_its_replica(gateway, ask) == 1.0


@pytest.mark.parametrize("changing", [True, False])
def test_a_session_without_a_name_comes_back_whether_its_first_line_changes_or_not(
    serving, changing
):
    """Claude Code's billing line changes with every request: 24 turns went to two replicas in
    turns.
    """
    gateway, *_ = serving({}, {}, slots=4)
    requests = iter(range(10**6))

    def ask(session, turn):
        line = BILLING.format(next(requests) if changing else 7)
        return call(
            gateway, path="/v1/messages", document=messages_document(session, turn, first=line)
        )[1]

    assert returns_to_its_replica(gateway, ask) == 1.0


def test_the_first_line_of_claude_code_does_not_tell_conversations_apart():
    for pad in (0, 30_000):
        digests = {
            inspect_body(
                json.dumps(
                    {**messages_document("a", 1, first=BILLING.format(n)), "pad": "x" * pad}
                ).encode()
            )
            for n in range(3)
        }
        assert len({summary.conversation for summary in digests}) == 1


@pytest.mark.parametrize("pad", [0, 40_000])
def test_a_session_in_the_body_is_found_in_small_and_in_large_bodies(pad):
    filler = {"model": "m", "messages": [{"role": "user", "content": "x" * pad}]}
    for field in ({"prompt_cache_key": "k"}, {"metadata": {"user_id": "k"}}):
        assert inspect_body(json.dumps({**filler, **field}).encode()).session == session_digest(
            b"k"
        )
    both = {**filler, "metadata": {"user_id": "other"}, "prompt_cache_key": "k"}
    assert inspect_body(json.dumps(both).encode()).session == session_digest(b"k")
    quoted = {
        **filler,
        "messages": [{"role": "user", "content": f'{"x" * pad}"prompt_cache_key": "k"'}],
    }
    assert inspect_body(json.dumps(quoted).encode()).session is None
    wrong = {**filler, "prompt_cache_key": 7, "metadata": "none"}
    assert inspect_body(json.dumps(wrong).encode()).session is None


def test_sub_agents_of_a_session_are_conversations_of_their_own():
    session = session_digest(b"s")
    agents = [session_digest(b"a"), session_digest(b"b")]
    conversations = {conversation_in(session, agent, 5) for agent in agents} | {
        conversation_in(session, None, 5)
    }
    assert len(conversations) == 3
    assert conversation_in(session, None, None) == session
    assert conversation_in(None, None, 5) == 5


def test_a_sub_agent_of_codex_belongs_to_its_parent():
    parent = {b"session-id": b"p"}
    child = {b"session-id": b"c", b"x-codex-parent-thread-id": b"p"}
    assert session_of_headers(child) == session_of_headers(parent)
    assert (agent_of_headers(parent), agent_of_headers(child)) == (None, session_digest(b"c"))


def test_sub_agents_of_one_session_leave_another_session_its_turn(serving):
    """Forty of them wait; the other session's request is next when a slot is free."""
    gateway, engine = serving({"token_ms": 20}, slots=2)
    order = []

    def ask(session, agent):
        headers = {"x_claude_code_session_id": session, "x_claude_code_agent_id": agent}
        post(
            gateway,
            {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": agent}]},
            **headers,
        )
        order.append(agent)

    crowd = [
        threading.Thread(target=ask, args=("crowd", f"agent {number}")) for number in range(40)
    ]
    for thread in crowd:
        thread.start()
    until(lambda: engine.state()["requests"] >= 2)
    ask("single", "alone")
    place = order.index("alone")
    for thread in crowd:
        thread.join()
    assert place <= 8  # of 41: those that were decoding when it came, and their neighbours


def test_the_log_names_sessions_by_a_digest(serving, tmp_path):
    log = tmp_path / "requests.log"
    gateway, _ = serving(log=str(log))
    post(gateway, x_claude_code_session_id="5f0c-secret")
    gateway.close()
    assert " flow=session:" in log.read_text()
    assert "secret" not in log.read_text()


def test_a_sub_agent_begins_where_its_session_lives(serving):
    gateway, *_ = serving({}, {}, slots=4)
    for session in range(6):
        name = {"x_claude_code_session_id": f"s{session}"}
        parent = post(gateway, chat_document("parent", 0), **name)[1]
        child = post(gateway, chat_document("child", 0), **name, x_claude_code_agent_id="child")[1]
        assert told(parent, "replica") == told(child, "replica")
