"""The gateway's own rows as sessions: what was new in a turn, pauses, sub-agents."""

from skep.bench.logged_sessions import LONGEST_PAUSE_S, logged_sessions
from skep.store.records import GatewayRequest

BEGAN = 1_700_000_000.0


def logged(at_s, prompt, *, conversation="c", session="s", cached=None, **fields):
    """Return a turn that arrived so long after the first one, and took a second."""
    facts = {
        "id": f"{session}{conversation}{at_s}",
        "arrived_at": BEGAN + at_s,
        "path": "/v1/chat/completions",
        "model": "m",
        "priority": "normal",
        "flow": None,
        "replica": "r0",
        "attempts": 1,
        "outcome": "answered",
        "status": 200,
        "code": None,
        "streamed": True,
        "queued_s": 0.0,
        "first_byte_s": 0.1,
        "ended_s": 1.0,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": 50,
        "request_bytes": 1,
        "response_bytes": 1,
        "session": session,
        "conversation": conversation,
        "turn": 1,
    }
    return GatewayRequest(**{**facts, **fields})


def only(*rows):
    (script,) = logged_sessions(rows)
    return script


def test_a_turn_brings_what_the_prompt_and_answer_before_it_did_not_have():
    script = only(logged(0, 1_000), logged(5, 1_400))
    assert script.prompts() == [1_000, 1_400]
    assert script.turns[1].new_tokens == 350


def test_a_pause_is_as_the_gateway_recorded_it():
    script = only(logged(0, 1_000), logged(9, 1_400, pause_s=7.5))
    assert script.turns[1].pause_s == 7.5


def test_a_pause_that_was_not_recorded_is_the_time_between_two_turns():
    script = only(logged(0, 1_000), logged(9, 1_400))
    assert script.turns[1].pause_s == 8.0


def test_a_night_is_cut_to_a_pause():
    script = only(logged(0, 1_000), logged(40_000, 1_400, pause_s=39_000.0))
    assert script.turns[1].pause_s == LONGEST_PAUSE_S


def test_a_prompt_that_has_become_shorter_was_compacted():
    script = only(logged(0, 9_000), logged(5, 2_000))
    assert script.turns[1].begins_anew
    assert script.prompts() == [9_000, 2_000]


def test_what_first_turns_had_cached_is_shared_by_all():
    rows = [
        logged(0, 5_000, session="a", cached=0),
        logged(1, 5_500, session="b", cached=4_000),
        logged(2, 5_700, session="c", cached=4_000),
    ]
    scripts = logged_sessions(rows)
    assert {script.shared_tokens for script in scripts} == {4_000}
    assert [script.prompts() for script in scripts] == [[5_000], [5_500], [5_700]]


def test_other_conversations_of_a_session_are_its_subagents():
    script = only(
        logged(0, 1_000),
        logged(2, 700, conversation="child"),
        logged(4, 900, conversation="child"),
        logged(9, 1_400),
    )
    (child,) = script.turns[0].subagents
    assert child.prompts() == [700, 900]
    assert len(script.turns) == 2


def test_requests_that_failed_or_have_no_session_are_no_turns():
    script = only(
        logged(0, 1_000),
        logged(3, None, turn=None),
        logged(4, 1_200, session=None),
        logged(9, 1_400),
    )
    assert script.prompts() == [1_000, 1_400]


def test_sessions_come_in_the_order_in_which_they_began():
    newest_first = [logged(8, 300, session="b"), logged(0, 200, session="a")]
    assert [script.prompts() for script in logged_sessions(newest_first)] == [[200], [300]]
