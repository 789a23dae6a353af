"""`skep sessions`: sessions of agents in a list, and one of them turn by turn."""

import json
import time

import pytest
from hive_client import ask
from in_process import call, refused

from skep.store.database import open_store
from skep.store.records import GatewayRequest

SYSTEM = {"role": "system", "content": "You are an agent. " * 700}
DAY_S = 86400.0
WARM = {"cached_tokens": 9000, "possible_tokens": 10_000}
EVICTED = {"cached_tokens": 16, "possible_tokens": 10_000, "cold": "evicted", "pause_s": 240.0}


def turn(number, **changes):
    facts = {
        "id": f"t-{number}",
        "arrived_at": time.time() - 3600 + number,
        "path": "/v1/chat/completions",
        "model": "qwen",
        "priority": "normal",
        "flow": None,
        "replica": "r0",
        "attempts": 1,
        "outcome": "answered",
        "status": 200,
        "code": None,
        "streamed": True,
        "queued_s": 0.5,
        "first_byte_s": 1.5,
        "ended_s": 2.0,
        "prompt_tokens": 12_000,
        "cached_tokens": 0,
        "output_tokens": 100,
        "request_bytes": 50_000,
        "response_bytes": 900,
        "session": "3fa90b12",
        "conversation": "77aa0b12",
        "turn": number,
        "pause_s": 4.0,
        "tool_call": True,
        "possible_tokens": 0,
    }
    return GatewayRequest(**{**facts, **changes})


@pytest.fixture
def stored(paths):
    """stored(turn(1), ...) puts these requests into the store."""

    def put(*requests):
        with open_store(paths.store) as store:
            store.append_gateway_requests(requests)

    return put


def test_without_sessions_it_says_what_makes_one(paths):
    assert "no sessions yet" in call("sessions", check=0).err
    assert call("sessions", "--json", check=0).json == []
    assert "no sessions yet" in refused("sessions", "show", "3f")


def test_sessions_are_listed_with_hits_beside_the_possible(stored):
    stored(turn(1, cold="first", pause_s=None), turn(2, **WARM), turn(3, **EVICTED))
    head, line = call("sessions", check=0).out.splitlines()
    titles = "SESSION MODEL REPLICA TURNS PROMPT HITS POSSIBLE COLD PAUSE LAST SEEN"
    assert head.split() == titles.split()
    assert line.startswith("3fa90b12  qwen   r0           3  12,000  25 %      56 %     1")


def test_the_newest_session_comes_first_and_old_ones_are_left_out(stored):
    old = {"arrived_at": time.time() - 9 * DAY_S, "session": "00000001"}
    stored(turn(1, **old), turn(1), turn(2, session="00000002"))

    def listed(*options):
        return [row["session"] for row in call("sessions", "--all", "--json", *options).json]

    assert listed() == ["00000002", "3fa90b12"]
    assert len(listed("--since", "10d")) == 3
    assert len(listed("-n", "1")) == 1


def test_single_requests_are_listed_where_they_are_asked_for(stored):
    stored(turn(1), turn(2), turn(1, session="00000002"))
    done = call("sessions", check=0)
    assert "00000002" not in done.out
    assert "1 of a single turn are left out; --all lists them" in done.err
    assert "00000002" in call("sessions", "--all", check=0).out


def test_a_session_heard_of_lately_is_live(stored):
    stored(turn(1), turn(2), turn(1, session="00000002", arrived_at=time.time() - 5))
    states = {row["session"]: row["live"] for row in call("sessions", "--json").json}
    assert states == {"3fa90b12": False, "00000002": True}
    assert "ago, live" in call("sessions", check=0).out


def test_requests_of_no_session_are_not_listed(stored):
    stored(turn(1, session=None, conversation=None, turn=None))
    assert call("sessions", "--json").json == []


def test_a_turn_is_a_line_with_the_reason_in_words(stored):
    changed = {"cold": "changed", "cold_at": 412, "replica": "r1"}
    stored(
        turn(1, cold="first", pause_s=None),
        turn(2, **WARM),
        turn(3, **EVICTED),
        turn(4, cold="moved", replica="r1"),
        turn(5, cold="restarted", replica="r1"),
        turn(6, **changed),
    )
    done = call("sessions", "show", "3fa", check=0)
    _, *lines = done.out.splitlines()
    reasons = [
        "first turn",
        "yes",
        "evicted after 4 min",
        "moved from r0 to r1",
        "engine restarted",
        "prompt changed at token 412",
    ]
    told = [line for line, reason in zip(lines, reasons, strict=True) if line.endswith(reason)]
    assert told == lines
    assert "qwen, 6 turns" in done.err


def test_the_bar_shows_what_came_from_the_cache(stored):
    stored(turn(1), turn(2, **WARM), turn(3, prompt_tokens=6000))
    _, *lines = call("sessions", "show", "3fa", check=0).out.splitlines()
    bars = [line.split()[1] for line in lines]
    assert bars == ["░" * 32, "█" * 24 + "░" * 8, "░" * 16]


def test_a_reason_that_repeats_comes_with_advice(stored):
    stored(turn(1), *(turn(number, **EVICTED) for number in (2, 3, 4)))
    done = call("sessions", "show", "3fa", check=0)
    assert "3 turns found their prompt evicted. Other prompts took its room" in done.err
    (advice,) = call("sessions", "show", "3fa", "--json").json["advice"]
    assert advice.startswith("3 turns")


def test_sub_agents_and_failures_are_told_apart(stored):
    failure = {"turn": None, "outcome": "hung_up", "status": None, "pause_s": None}
    stored(turn(1), turn(2, conversation="00000009"), turn(3, **failure))
    done = call("sessions", "show", "3fa", check=0)
    head, first, second, third = done.out.splitlines()
    assert head.split()[:2] == ["TURN", "AGENT"]
    assert (first.split()[1], second.split()[1]) == ("1", "2")
    assert third.endswith("hung_up")
    assert "2 conversations" in done.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("9", "there is no session `9`"),
        ("x' OR 1", "there is no session"),
        ("", "there is no session"),
        ("3", "several sessions begin with `3`: 30000000, 3fa90b12"),
    ],
)
def test_a_name_that_means_no_session_is_refused(stored, name, words):
    stored(turn(1), turn(1, session="30000000"))
    assert words in refused("sessions", "show", name)


def test_the_running_deployment_lists_its_sessions_though_it_stores_none(skep, up, configure):
    configure(gateway="store_requests = false\n")
    url = up()["url"]
    messages = [SYSTEM, {"role": "user", "content": "Mend the roof."}]
    for _ in range(2):
        ask(url, messages=messages)
    (session,) = json.loads(skep("sessions", "--json", check=0).stdout)
    assert (session["turns"], session["model"], session["live"]) == (2, "fake-model", True)
