"""The pages of agents' sessions: the list, and one session turn by turn."""

import pytest
from stored_runs import gateway_request

NOW = 1_794_752_553.0
SESSION = "3fa90b12"
EVICTED = {"cached_tokens": 16, "cold": "evicted", "pause_s": 240.0}


def turn(number, **changes):
    facts = {
        "id": f"t-{number}",
        "model": "qwen<b>",
        "prompt_tokens": 10_000 + 1000 * number,
        "cached_tokens": 9000 + 1000 * number,
        "possible_tokens": 9000 + 1000 * number,
        "output_tokens": 100,
        "session": SESSION,
        "conversation": SESSION,
        "turn": number,
    }
    return gateway_request(NOW - 3600 + 60 * number, **{**facts, **changes})


def fill(store):
    store.append_gateway_requests(
        [
            turn(1, cached_tokens=0, possible_tokens=0, cold="first"),
            turn(2),
            *(turn(number, **EVICTED) for number in (3, 4, 5)),
            turn(1, session="00000007", conversation="00000007"),
            turn(2, session="00000007", conversation="00000007"),
            turn(1, session="00000008", conversation="00000008"),
            gateway_request(NOW - 60),
        ]
    )


def test_the_list_has_every_session_newest_first(ask):
    page = ask("/sessions")[1]
    assert page.index("/sessions/3fa90b12") < page.index("/sessions/00000007")
    assert "qwen&lt;b&gt;" in page
    assert "00000008" not in page
    rows = ask.json("/api/sessions.json")["sessions"]
    assert [(row["session"], row["turns"], row["cold_turns"]) for row in rows] == [
        (SESSION, 5, 3),
        ("00000007", 2, 0),
        ("00000008", 1, 0),
    ]


def test_a_session_shows_its_pictures_its_turns_and_advice(ask):
    page = ask(f"/sessions/{SESSION}")[1]
    assert page.count("<svg") >= 3  # the mark of skep, and two pictures
    assert "evicted after 4 min" in page
    assert "3 turns found their prompt evicted." in page
    assert "read anew" in page
    assert "▼" in page


def test_a_session_as_json_has_its_requests_in_order(ask):
    story = ask.json(f"/api/sessions/{SESSION}.json")
    assert [request["turn"] for request in story["requests"]] == [1, 2, 3, 4, 5]
    assert story["requests"][2]["reason"] == "evicted after 4 min"
    assert len(story["advice"]) == 1


def test_the_beginning_of_an_id_suffices(ask):
    assert f"Session {SESSION}" in ask("/sessions/3f")[1]


@pytest.mark.parametrize("name", ["ffffffff", "%25", "last", "0 OR 1"])
def test_a_session_that_is_not_there_is_told_as_such(ask, name):
    answer, page = ask(f"/sessions/{name.replace(' ', '%20')}")
    assert answer.status == 404
    assert "there is no session" in page


def test_the_public_sees_no_session(public):
    for path in ("/sessions", f"/sessions/{SESSION}", "/api/sessions.json"):
        assert public(path)[0].status == 404, path
    assert "/sessions" not in public("/")[1]


def test_a_clients_key_opens_no_session(client_key):
    for path in ("/sessions", f"/sessions/{SESSION}", "/api/sessions.json"):
        assert client_key(path)[0].status == 403, path
    assert 'href="/sessions"' not in client_key("/")[1]
