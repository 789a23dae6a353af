"""Which prefixes a replica holds, and which of them give way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.planner.prefix_cache import PrefixCache


def filled(capacity, *prompts, ram=0):
    """Return a cache in which these prompts were computed, one after the other."""
    cache = PrefixCache(capacity, ram)
    for blocks in prompts:
        cache.use(blocks)
        cache.keep_in_ram(blocks)
        cache.release(blocks)
    return cache


def test_a_prompt_that_was_computed_is_found():
    assert filled(8, "abc").held("abc") == 3


def test_a_prompt_is_found_up_to_where_it_differs():
    assert filled(8, "abc").held("abxc") == 2


def test_what_was_used_longest_ago_gives_way_first():
    cache = filled(6, "abc", "def", "ghi")
    assert (cache.held("abc"), cache.held("def"), cache.held("ghi")) == (0, 3, 3)


def test_the_end_of_a_prompt_gives_way_before_its_beginning():
    cache = filled(6, "abc", "defg")
    assert cache.held("abc") == 2


def test_a_prompt_that_is_found_again_gives_way_later():
    cache = filled(6, "abc", "def", "abc", "xyz")
    assert (cache.held("abc"), cache.held("def")) == (3, 0)


def test_blocks_in_use_never_give_way():
    cache = PrefixCache(4)
    cache.use("abcd")
    cache.set_unnamed(3)
    assert cache.held("abcd") == 4
    assert cache.free_blocks == -3


def test_a_beginning_that_two_sequences_share_takes_its_room_once():
    cache = PrefixCache(8)
    cache.use("abc")
    cache.use("abd")
    assert cache.used_blocks == 4
    assert cache.needs("abe") == 1


def test_a_shared_block_is_in_use_until_the_last_one_gives_it_back():
    cache = PrefixCache(8)
    cache.use("ab")
    cache.use("ab")
    cache.release("ab")
    assert cache.used_blocks == 2


def test_answers_under_way_push_out_what_nobody_uses():
    cache = filled(4, "abc")
    cache.set_unnamed(2)
    assert cache.held("abc") == 2
    assert cache.evicted_blocks == 1


def test_what_the_card_has_lost_is_found_in_ram():
    cache = filled(3, "abc", "def", ram=6)
    assert cache.held("abc") == 0
    assert cache.held_in_ram("abcx", 0) == 3


def test_ram_gives_way_by_the_same_rule():
    cache = filled(3, "abc", "def", "ghi", ram=6)
    assert cache.held_in_ram("abc", 0) == 0
    assert cache.held_in_ram("def", 0) == 3


def test_blocks_that_were_never_computed_are_forgotten():
    cache = filled(8, "abc")
    cache.forget("c")
    assert cache.held("abc") == 2


@given(st.lists(st.text("abcd", min_size=1, max_size=6), max_size=30), st.integers(1, 12))
def test_there_are_never_more_blocks_than_the_capacity(prompts, capacity):
    cache = PrefixCache(capacity)
    for prompt in prompts:
        blocks = [prompt[: end + 1] for end in range(min(len(prompt), capacity))]
        cache.use(blocks)
        cache.release(blocks)
        held = {prompt[: end + 1] for prompt in prompts for end in range(len(prompt))}
        assert sum(cache.held([block]) for block in held) <= capacity
    assert cache.used_blocks == 0


def test_its_state_is_one_line():
    assert repr(filled(8, "abc")) == "<PrefixCache 0/8 blocks in use, 3 idle, 0 in RAM>"


@pytest.mark.parametrize("begin", [0, 1, 2, 3])
def test_ram_is_asked_from_any_block_on(begin):
    assert filled(8, "abc", ram=8).held_in_ram("abc", begin) == 3 - begin
