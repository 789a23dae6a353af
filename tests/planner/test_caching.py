"""Continuous batching with a prefix cache: hits, room, preemption, KV in RAM."""

from cached_load import BLOCK, CHUNK, play, replica, sequence
from hypothesis import given, settings
from hypothesis import strategies as st


def test_the_second_turn_computes_only_what_is_new():
    machine = replica()
    play(machine, sequence(1, 8000, 160, name="a"))
    following = sequence(2, 8500, 10, name="a")
    play(machine, following)
    assert following.cached == (8000 + 160) // BLOCK * BLOCK


def test_a_prompt_that_is_there_whole_still_computes_its_last_block():
    machine = replica()
    play(machine, sequence(1, 1600, 1, name="a"))
    again = sequence(2, 1600, 1, name="a")
    play(machine, again)
    assert again.cached == 1600 - BLOCK


def test_a_prompt_without_names_finds_nothing_and_leaves_nothing():
    machine = replica()
    nameless = sequence(1, 1600, 160)
    nameless.blocks = nameless.answer_blocks = ()
    play(machine, nameless)
    assert machine.cache.free_blocks == machine.cache.capacity_blocks
    assert machine.counts.hit_tokens == 0


def test_a_hit_saves_the_time_of_its_prefill():
    machine = replica()
    cold_s, _ = play(machine, sequence(1, 16_000, 16, name="a"))
    warm_s, _ = play(machine, sequence(2, 16_016, 16, name="a"))
    assert warm_s < cold_s / 3


def test_a_conversation_that_was_pushed_out_is_computed_again():
    machine = replica(pool_tokens=10_000)
    play(machine, sequence(1, 8000, 16, name="a"))
    play(machine, sequence(2, 8000, 16, name="b"))
    again = sequence(3, 8000, 16, name="a")
    play(machine, again)
    assert again.cached < 8000 * 0.3


def test_what_the_card_lost_comes_back_from_ram_quicker_than_it_is_computed():
    def third_turn(ram_tokens):
        machine = replica(pool_tokens=20_000, ram_tokens=ram_tokens)
        play(machine, sequence(1, 16_000, 16, name="a"))
        play(machine, sequence(2, 16_000, 16, name="b"))
        seconds, _ = play(machine, sequence(3, 16_000, 16, name="a"))
        return seconds, machine.counts.ram_tokens

    without_s, _ = third_turn(None)
    with_ram_s, copied = third_turn(100_000)
    assert copied > 10_000
    assert with_ram_s < without_s / 2


def test_a_prompt_waits_until_all_of_its_blocks_have_room():
    machine = replica(pool_tokens=10_000)
    for number in (1, 2):
        machine.submit(sequence(number, 6000, 200))
    machine.finish(machine.next_pass())
    machine.next_pass()
    assert (machine.running, len(machine.waiting)) == (1, 1)


def test_answers_that_outgrow_the_pool_preempt_the_one_that_came_last():
    machine = replica(pool_tokens=4000)
    sequences = [sequence(number, 1200, 1600) for number in (1, 2)]
    _, ended = play(machine, *sequences)
    assert ended == [1, 2]
    assert machine.counts.preemptions >= 1


def test_a_preempted_sequence_is_told_of_once_when_it_starts():
    machine = replica(pool_tokens=4000)
    for number in (1, 2):
        machine.submit(sequence(number, 1200, 1600))
    results = []
    while (following := machine.next_pass()) is not None:
        results.append(machine.finish(following))
    started = [entry.id for result in results for entry in result.started]
    resumed = [entry.id for result in results for entry in result.resumed]
    assert sorted(started) == [1, 2]
    assert resumed == [2]


def test_a_sequence_larger_than_the_pool_runs_alone():
    _, ended = play(replica(pool_tokens=1000), sequence(1, 5000, 50))
    assert ended == [1]


def test_a_cancelled_sequence_gives_its_blocks_back():
    machine = replica()
    entry = sequence(1, 20_000, 500)
    machine.submit(entry)
    machine.finish(machine.next_pass())
    machine.cancel(entry)
    assert machine.cache.used_blocks == 0


def test_blocks_of_a_cancelled_prompt_that_were_not_computed_are_no_hits():
    machine = replica()
    entry = sequence(1, 20_000, 500, name="a")
    machine.submit(entry)
    machine.finish(machine.next_pass(at_most=1))
    machine.cancel(entry)
    assert machine.cache.held(entry.blocks) * BLOCK <= 8192


def test_a_prompt_on_its_way_from_ram_can_be_cancelled():
    machine = replica(pool_tokens=20_000, ram_tokens=100_000, tokens_per_s=1000)
    play(machine, sequence(1, 16_000, 16, name="a"))
    play(machine, sequence(2, 16_000, 16, name="b"))
    entry = sequence(3, 16_000, 16, name="a")
    machine.submit(entry)
    machine.next_pass()
    machine.cancel(entry)
    assert machine.running == 0
    assert machine.cache.used_blocks == 0


def test_what_a_cancelled_prompt_would_have_computed_behind_its_kv_in_ram_is_no_hit():
    machine = replica(pool_tokens=30_000, ram_tokens=100_000, tokens_per_s=1000)
    play(machine, sequence(1, 16_000, 16, name="a"))
    play(machine, sequence(2, 28_000, 16, name="b"))
    entry = sequence(3, 24_000, 16, name="a")
    machine.submit(entry)
    machine.next_pass()
    machine.cancel(entry)
    assert machine.cache.held(entry.blocks) * BLOCK <= 16_016


def test_linear_layers_go_on_from_the_end_of_an_earlier_answer():
    machine = replica(state_blocks=3)
    play(machine, sequence(1, 8000, 160, name="a"))
    following = sequence(2, 8500, 10, name="a")
    play(machine, following)
    assert following.cached == (8000 + 160) // BLOCK * BLOCK


def test_linear_layers_have_no_state_in_the_middle_of_an_earlier_prompt():
    machine = replica(state_blocks=3)
    play(machine, sequence(1, 8000, 160, name="a"))
    shorter = sequence(2, 6000, 10, name="a")
    play(machine, shorter)
    assert shorter.cached == 0


def test_linear_layers_go_on_from_the_end_of_a_pass_over_a_long_prompt():
    machine = replica(state_blocks=3)
    play(machine, sequence(1, 20_000, 160, name="a"))
    shorter = sequence(2, 10_000, 10, name="a")
    play(machine, shorter)
    assert shorter.cached == CHUNK


def test_kept_states_push_conversations_out_of_a_pool_that_held_them_all():
    def hits_of_second_turns(state_blocks):
        machine = replica(pool_tokens=20_000, block=500, state_blocks=state_blocks)
        for turn in range(2):
            for name in "abcd":
                play(machine, named_blocks(machine, 4000 + 500 * turn, name))
        return machine.counts.hit_tokens

    assert hits_of_second_turns(0) == 4 * 4000
    assert hits_of_second_turns(4) == 0


def named_blocks(machine, prompt, name):
    entry = sequence(f"{name}{prompt}", prompt, 10)
    count = prompt // machine.block_tokens
    entry.blocks = tuple((name, place) for place in range(count))
    entry.answer_blocks = ()
    return entry


LENGTHS = st.tuples(st.integers(1, 4000), st.integers(1, 600), st.integers(0, 3))


@settings(deadline=None)
@given(
    st.lists(LENGTHS, min_size=1, max_size=12),
    st.integers(1000, 9000),
    st.sampled_from([None, 20_000]),
    st.sampled_from([0, 3]),
)
def test_every_sequence_ends_and_nothing_stays_in_use(
    lengths, pool_tokens, ram_tokens, state_blocks
):
    machine = replica(
        pool_tokens=pool_tokens, slots=4, ram_tokens=ram_tokens, state_blocks=state_blocks
    )
    sequences = [
        sequence(number, prompt, output, name=name)
        for number, (prompt, output, name) in enumerate(lengths)
    ]
    _, ended = play(machine, *sequences)
    assert sorted(ended) == list(range(len(lengths)))
    assert machine.running == 0
    assert machine.cache.used_blocks == 0


@settings(deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=10), st.sampled_from([0, 3]), st.data())
def test_whoever_leaves_at_any_time_leaves_nothing_behind(lengths, state_blocks, data):
    machine = replica(pool_tokens=6000, slots=4, ram_tokens=20_000, state_blocks=state_blocks)
    sequences = [
        sequence(number, prompt, output, name=name)
        for number, (prompt, output, name) in enumerate(lengths)
    ]
    for entry in sequences:
        machine.submit(entry)
    while (following := machine.next_pass(at_most=50)) is not None:
        machine.finish(following)
        machine.cancel(data.draw(st.sampled_from(sequences)))
    assert machine.load == 0
    assert machine.cache.used_blocks == 0
