"""Conversations and shared prefixes: what is said, what is shared, how long it is."""

import random
import statistics
from itertools import islice

import pytest

from skep.errors import UserError
from skep.workload.filling import CHARS_PER_PIECE, pieces
from skep.workload.prompts import FOLLOW_UPS, KINDS, conversations, shared_prefix

AS_PIECES = {"chars_per_token": CHARS_PER_PIECE}


def some(make, n, *, seed=1, **options):
    return list(islice(make(random.Random(seed), **options), n))


def test_context_grows_by_the_answers():
    """Each turn repeats all that was said, so that a prefix cache may serve it."""
    (script,) = some(conversations, 1, turns=3)
    first, second, third = (script.messages(turn, ["A", "B"][:turn]) for turn in range(3))
    assert [message["role"] for message in third] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert [m["content"] for m in third if m["role"] == "assistant"] == ["A", "B"]
    assert third[-1]["content"] == script.turns[2]


def test_conversations_are_distinct_and_come_from_the_seed():
    """No two begin alike; kinds take turns."""
    scripts = some(conversations, 100, turns=3)
    assert (
        len({script.system for script in scripts})
        == len({script.turns for script in scripts})
        == 100
    )
    assert {script.kind for script in scripts} == set(KINDS)
    assert scripts[:50] == some(conversations, 50, turns=3)


@pytest.mark.parametrize(("first", "turn"), [(60, 12), (250, 40), (1000, 300), (4000, 1500)])
def test_turns_have_the_length_asked_for(first, turn):
    """The first with its system message, each further one by itself."""
    for script in some(
        conversations, 10, turns=6, tokens_first=first, tokens_turn=turn, **AS_PIECES
    ):
        assert pieces(f"{script.system}\n\n{script.turns[0]}") == pytest.approx(first, abs=2)
        assert all(abs(pieces(text) - turn) <= 4 for text in script.turns[1:])
        assert "{" not in "".join(script.turns[1:]) or turn >= 120


def test_no_follow_up_comes_twice_while_others_are_left():
    """And a very long conversation goes on."""
    (script,) = some(conversations, 1, turns=1 + 2 * len(FOLLOW_UPS), tokens_turn=60)
    once = script.turns[1 : 1 + len(FOLLOW_UPS)]
    assert len({text.split(".")[0] for text in once}) == len(FOLLOW_UPS)
    assert len(set(script.turns)) == len(script.turns)


def test_think_times_have_the_mean_asked_for_and_an_end():
    """Nobody thinks for an hour because of one draw."""
    pauses = [
        s
        for script in some(conversations, 300, turns=5, tokens_first=60, think_s=4.0)
        for s in script.think_s
    ]
    assert len(pauses) == 1200
    assert statistics.mean(pauses) == pytest.approx(4.0, rel=0.1)
    assert min(pauses) >= 0
    assert max(pauses) < 4.0 * 5.1
    (script,) = some(conversations, 1, think_s=0)
    assert script.think_s == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"turns": 0}, "turns"),
        ({"tokens_turn": 3}, "a further turn"),
        ({"tokens_first": 9}, "too few"),
    ],
)
def test_impossible_conversations_are_refused(options, problem):
    """Before the first is taken."""
    with pytest.raises(UserError, match=problem):
        conversations(random.Random(1), **options)


@pytest.mark.parametrize("tokens", [100, 1000, 8000])
def test_agents_share_one_system_prompt_and_another_seed_has_another_one(tokens):
    """Of the length asked for; their tasks differ from the first word on.

    The first request of a run is cold.
    """
    prompts = some(shared_prefix, 50, tokens=tokens, task_tokens=80, **AS_PIECES)
    assert len({prompt.system for prompt in prompts}) == 1
    assert pieces(prompts[0].system) == pytest.approx(tokens, abs=3)
    assert len({prompt.user.split()[0] for prompt in prompts}) == 50
    assert all(pieces(prompt.user) == pytest.approx(80, abs=2) for prompt in prompts)
    (prompt,) = some(shared_prefix, 1, seed=2, tokens=tokens, task_tokens=80, **AS_PIECES)
    assert prompt.system.split()[0] != prompts[0].system.split()[0]
