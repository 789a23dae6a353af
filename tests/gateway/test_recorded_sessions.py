"""What the gateway keeps of agents' sessions: rows, metrics and the list of those that are live."""

import sqlite3

import pytest
from gateway_client import MODEL, call, metrics, post, until

from skep.store.database import open_store

SYSTEM = "You are an agent. " * 700
ENGINE = {"ctx": 100_000, "token_ms": 0.1}


def document(turn, *, task="mend the roof", system=SYSTEM, **fields):
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": task},
    ]
    step = [
        {"role": "assistant", "content": "a step"},
        {"role": "user", "content": "go on with it " * 200},
    ]
    return {
        "model": MODEL,
        "max_tokens": 3,
        "messages": messages + step * turn,
        **fields,
    }


@pytest.fixture
def recording(serving, tmp_path):
    """recording(engines): a gateway, and rows(count) that waits for so many, oldest first."""

    def start(*engines, **setup):
        path = tmp_path / "store"
        options = [{**ENGINE, **engine} for engine in engines or ({},)]
        gateway, *running = serving(*options, slots=4, store=str(path), **setup)

        def rows(count):
            with open_store(path) as store:
                stored = until(lambda: len(rows := store.gateway_requests()) >= count and rows)
            return stored[::-1]

        return gateway, rows, running

    return start


@pytest.mark.parametrize("stream", [False, True])
def test_turns_of_a_session_are_stored_with_what_the_cache_held(recording, stream):
    gateway, rows, _ = recording()
    for turn in range(3):
        post(gateway, document(turn, stream=stream), x_session_id="dora")
    stored = rows(3)
    assert [row.turn for row in stored] == [1, 2, 3]
    assert [row.cold for row in stored] == ["first", None, None]
    assert len({row.session for row in stored}) == 1
    first, second, _ = stored
    assert second.possible_tokens >= second.cached_tokens > 2000
    assert second.pause_s >= 0
    assert first.pause_s is None


def test_no_word_of_a_prompt_or_a_name_is_stored(recording, tmp_path):
    gateway, rows, _ = recording()
    post(gateway, document(1, task="a secret word: rosebud"), x_session_id="dora's session")
    rows(1)
    connection = sqlite3.connect(tmp_path / "store")
    text = "\n".join(connection.iterdump())
    connection.close()
    assert "rosebud" not in text
    assert "dora" not in text


def test_an_agent_that_names_no_session_has_one_by_how_it_begins(recording):
    gateway, rows, _ = recording()
    for turn in range(2):
        post(gateway, document(turn, task="one"))
        post(gateway, document(turn, task="two"))
    first, second, later, _ = rows(4)
    assert (first.turn, second.turn, later.turn) == (1, 1, 2)
    assert first.session == first.conversation
    assert first.session == later.session
    assert first.session != second.session


@pytest.mark.parametrize("engines", [1, 2])
def test_a_small_request_without_a_name_is_of_no_session(recording, engines):
    gateway, rows, _ = recording(*[{}] * engines)
    post(gateway)
    (row,) = rows(1)
    assert row.session is None
    assert row.possible_tokens is None


def test_a_small_request_with_a_name_begins_a_session_that_grows(recording):
    gateway, rows, _ = recording()
    for turn in (0, 9):
        post(gateway, document(turn, system="Be brief."), x_session_id="dora")
    assert [row.turn for row in rows(2)] == [1, 2]


def test_embeddings_are_no_turns(recording):
    gateway, rows, _ = recording()
    text = {"model": MODEL, "input": SYSTEM}
    call(gateway, path="/v1/embeddings", document=text, x_session_id="dora")
    (row,) = rows(1)
    assert row.session is None


@pytest.mark.parametrize(
    ("system", "tokens"), [(SYSTEM[:-9] + "other ...", 2800), ("other" + SYSTEM[5:], 0)]
)
def test_a_changed_prompt_is_told_by_its_token(recording, system, tokens):
    gateway, rows, _ = recording()
    post(gateway, document(2), x_session_id="dora")
    post(gateway, document(3, system=system), x_session_id="dora")
    _, second = rows(2)
    assert (second.turn, second.cold) == (2, "changed")
    assert second.cold_at == pytest.approx(tokens, abs=300)


@pytest.mark.parametrize(("name", "reason"), [("r1", "moved"), ("r0", "restarted")])
def test_a_session_whose_engine_is_another_one_says_so(recording, name, reason):
    gateway, rows, engines = recording({}, {})
    for turn, (place, engine) in enumerate(zip(("r0", name), engines, strict=True)):
        replica = {"name": place, "url": engine.url, "model": MODEL, "slots": 4}
        gateway.serve([{**replica, "confirms": "slots"}], [MODEL])
        post(gateway, document(turn), x_session_id="dora")
    assert [row.cold for row in rows(2)] == ["first", reason]


def test_metrics_count_cold_turns_and_what_could_have_been_cached(recording):
    gateway, *_ = recording()
    for turn in range(2):
        post(gateway, document(turn), x_session_id="dora")
    counted = metrics(gateway)
    labels = f'model="{MODEL}",class="normal",replica="r0"'
    cold = f'skep_cold_turns_total{{model="{MODEL}",replica="r0",reason="first"}}'
    assert counted[cold] == 1
    possible = counted[f"skep_possible_cached_tokens_total{{{labels}}}"]
    assert possible >= counted[f"skep_cached_tokens_total{{{labels}}}"] > 2000


def test_the_gateway_lists_sessions_newest_first(recording):
    gateway, *_ = recording()
    for name in ("dora", "emil"):
        for turn in range(2):
            post(gateway, document(turn, task=f"for {name}"), x_session_id=name)
    newest, oldest = gateway.ask(op="sessions")["sessions"]
    assert (newest["turns"], newest["replica"], newest["cold"]) == (2, "r0", {})
    assert oldest["cold"] == {"first": 1}
    assert newest["last_at"] >= oldest["last_at"]
    assert 0.4 < oldest["hit_rate"] <= oldest["possible_rate"] < 1


SCHEMA = {"type": "object"}
TOOL = {"name": "look", "parameters": SCHEMA}
TOOLS = {
    "/v1/chat/completions": (
        {"type": "function", "function": TOOL},
        "required",
    ),
    "/v1/messages": (
        {"name": "look", "input_schema": SCHEMA},
        {"type": "any"},
    ),
    "/v1/responses": (
        {"type": "function", **TOOL},
        "required",
    ),
}


@pytest.mark.parametrize("path", TOOLS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_in_a_tool_call_is_told(recording, path, stream):
    gateway, rows, _ = recording()
    plain = document(1, stream=stream)
    if path == "/v1/responses":
        plain["input"] = plain.pop("messages")
    tool, choice = TOOLS[path]
    forced = {**plain, "tools": [tool], "tool_choice": choice}
    for question in (forced, plain):
        status, _, text = call(gateway, path=path, document=question)
        assert status == 200, text
    assert [row.tool_call for row in rows(2)] == [True, False]


def test_a_new_gateway_goes_on_with_the_numbers_of_turns(recording):
    """It reads them while it already serves: a turn that is sooner is counted on afterwards."""
    earlier, rows, _ = recording()
    for turn in range(3):
        post(earlier, document(turn), x_session_id="dora")
    rows(3)
    earlier.close()
    later, rows, _ = recording()
    post(later, document(3), x_session_id="dora")
    until(lambda: later.ask(op="sessions")["sessions"][0]["turns"] == 4)
    post(later, document(4), x_session_id="dora")
    assert rows(5)[-1].turn == 5
