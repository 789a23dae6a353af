"""Sketches of prompts: where two prompts differ is told from digests, and no word is kept."""

import json

import pytest

from skep.gateway.body_inspection import LONG_BYTES
from skep.gateway.prompt_sketch import (
    BURST_BYTES,
    BYTES_A_TICK,
    COARSE_BLOCK,
    FINE_BLOCK,
    FINE_BYTES,
    SKETCHED_BYTES,
    SketchBudget,
    look_at_prompt,
    offset_of,
    sketch_of,
)

SYSTEM = {"role": "system", "content": "You are an agent. " * 600}
TASK = {"role": "user", "content": "Mend the roof."}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def body(*messages, **fields):
    return json.dumps({"model": "m", **fields, "messages": [SYSTEM, TASK, *messages]}).encode()


def turns(count, words="It rains. "):
    return [{"role": "assistant", "content": f"{number} {words * 40}"} for number in range(count)]


def sketch(*messages, **fields):
    return look_at_prompt(body(*messages, **fields)).sketch


@pytest.mark.parametrize("count", [1, 5, 300])
def test_a_prompt_that_grew_at_its_end_has_not_changed(count):
    assert sketch(*turns(count)).changed_at(sketch(*turns(count + 3))) is None


@pytest.mark.parametrize("at", [0, 700, 10_000, FINE_BYTES - 1, FINE_BYTES + 50_000])
def test_a_change_is_found_in_its_block(at):
    text = b"all bees are busy " * 6000
    changed = bytearray(text)
    changed[at] ^= 1
    block = FINE_BLOCK if at < FINE_BYTES else COARSE_BLOCK
    assert sketch_of(text).changed_at(sketch_of(bytes(changed))) == at // block * block


def test_offsets_go_on_where_blocks_become_coarse():
    fine = FINE_BYTES // FINE_BLOCK
    assert [offset_of(block) for block in (0, 1, fine, fine + 1)] == [
        0,
        FINE_BLOCK,
        FINE_BYTES,
        FINE_BYTES + COARSE_BLOCK,
    ]


def test_tools_come_first_wherever_the_body_has_them():
    tools = [{"type": "function", "function": {"name": "look"}}]
    before = sketch(*turns(9), tools=tools)
    after = json.loads(body(*turns(9)))
    after["tools"] = tools
    assert look_at_prompt(json.dumps(after).encode()).sketch == before


def test_another_tool_is_a_change_at_the_beginning():
    assert sketch(*turns(9)).changed_at(sketch(*turns(9), tools=[{"name": "look"}])) == 0


@pytest.mark.parametrize("place", [0, -1])
def test_marks_for_a_cache_that_move_are_no_change(place):
    marked = turns(9)
    content = {"type": "text", "text": "It rains. " * 90}
    keys = [*content.items()]
    keys.insert(place + 1 if place == 0 else len(keys), *MARK.items())
    marked[4] = {"role": "user", "content": [dict(keys)]}
    plain = turns(9)
    plain[4] = {"role": "user", "content": [content]}
    assert sketch(*marked) == sketch(*plain)


def test_an_answer_that_speaks_of_marks_is_text():
    words = 'say "cache_control": {} '
    first = sketch(*turns(2, words))
    assert first != sketch(*turns(2, words.replace("{}", "{ }")))


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b" " * SKETCHED_BYTES,
        b'{"messages": 1',
        b'{"model":"' + b"m" * SKETCHED_BYTES + b'"}',
        b"",
    ],
)
def test_what_is_no_prompt_has_no_sketch(text):
    assert look_at_prompt(text) is None


@pytest.mark.parametrize("length", [0, SKETCHED_BYTES - 1, LONG_BYTES + 1])
def test_small_and_huge_bodies_are_not_sketched(length):
    assert not SketchBudget().take(length)


def test_a_flood_of_prompts_is_sketched_in_part():
    budget = SketchBudget()
    burst = [budget.take(LONG_BYTES) for _ in range(100)]
    assert burst.count(True) == BURST_BYTES // LONG_BYTES
    budget.refill()
    later = [budget.take(LONG_BYTES) for _ in range(100)]
    assert later.count(True) == BYTES_A_TICK // LONG_BYTES
    assert repr(budget) == "<SketchBudget 0 bytes>"


def test_a_sketch_is_small_and_holds_no_word():
    whole = look_at_prompt(body(*turns(2000)))
    assert len(whole.sketch.digests) < 1500
    assert b"rain" not in whole.sketch.digests


def test_a_conversation_is_told_by_its_beginning_and_known_by_its_end():
    earlier = look_at_prompt(body(*turns(30)))
    later = look_at_prompt(body(*turns(31)))
    assert earlier.conversation == later.conversation is not None
    changed = look_at_prompt(body(*turns(31)).replace(b"You are", b"You ARE", 1))
    assert earlier.sketch.ends_inside(changed.sketch)
    assert not earlier.sketch.ends_inside(sketch(*turns(31, "It pours. ")))
