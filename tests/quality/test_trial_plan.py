"""What a trial asks in which order."""

import pytest

from skep.errors import UserError
from skep.quality.trial_plan import AGAIN, BASE, LOAD, CacheBypass, ItemPass, Passes, TrialPlan, blocks_of, order_of


@pytest.mark.parametrize(("count", "level"), [(1, 4), (63, 4), (64, 4), (127, 4), (128, 4), (1000, 8), (1000, 64)])
def test_blocks_hold_every_item_once_and_none_is_small(count, level):
    blocks = blocks_of(count, level)
    assert [index for begin, end in blocks for index in range(begin, end)] == list(range(count))
    if len(blocks) > 1:
        assert min(end - begin for begin, end in blocks) >= max(64, 8 * level)


def test_which_arm_goes_first_changes_from_block_to_block_and_from_round_to_round():
    arms = Passes().round(4, again=False)
    firsts = [order_of(arms, 1, 4, 0, block)[0].arm for block in range(4)]
    assert firsts in ([BASE, LOAD] * 2, [LOAD, BASE] * 2)
    assert [order_of(arms, 1, 4, 1, block)[0].arm for block in range(4)] == firsts[1:] + firsts[:1]


def test_a_coin_of_the_seed_says_which_arm_begins():
    arms = Passes().round(4, again=False)
    assert {order_of(arms, seed, 4, 0, 0)[0].arm for seed in range(20)} == {BASE, LOAD}


def test_the_load_stands_between_the_two_base_arms():
    arms = Passes().round(4, again=True)
    assert [one.arm for one in order_of(arms, 1, 4, 0, 0)] in ([BASE, LOAD, AGAIN], [AGAIN, LOAD, BASE])


def test_passes_of_a_level_are_numbered_as_they_are_begun():
    passes = Passes()
    assert passes.round(4, again=True) == {
        BASE: ItemPass(1, 0, BASE),
        AGAIN: ItemPass(1, 1, AGAIN),
        LOAD: ItemPass(4, 0, LOAD),
    }
    assert passes.round(4, again=False) == {BASE: ItemPass(1, 2, BASE), LOAD: ItemPass(4, 1, LOAD)}


def test_one_is_the_base_whether_it_is_named_or_not():
    assert TrialPlan((8, 1, 4)).levels == TrialPlan((4, 8)).levels == (4, 8)


def test_a_plan_without_a_level_above_one_is_refused():
    with pytest.raises(UserError, match="no level to hold against C=1"):
        TrialPlan((1,))


def test_llama_cpp_is_told_to_use_no_cache_and_vllm_gets_a_salt_for_each_request():
    one = ItemPass(4, 0, LOAD)
    for told in (
        {"engine": "xllamacpp 2026.1"},
        {"engine": "llama.cpp b11434-1a2b3c4"},
        {"engine": "llamacpp"},
        {"build": "b6000-abc"},
    ):
        assert CacheBypass.for_engine(told, "s").fields(one, 3) == {"cache_prompt": False}
    salted = CacheBypass.for_engine({"engine": "vllm 0.19.1"}, "5a17")
    salts = [salted.fields(of, index)["cache_salt"] for of in (one, ItemPass(1, 0, BASE)) for index in range(3)]
    assert len(set(salts)) == 6
    assert not set("@/\\\0") & set("".join(salts))  # vLLM refuses these
    assert all(
        not CacheBypass.for_engine({"engine": name}, "s").fields(one, 3) for name in ("sglang 0.5", "ollama 0.12", "")
    )
    assert set(CacheBypass.for_engine({"engine": "vllm 0.19.1, xllamacpp 2026.1"}, "s").fields(one, 3)) == {
        "cache_prompt",
        "cache_salt",
    }
