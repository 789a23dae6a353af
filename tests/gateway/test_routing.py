"""Which replica gets a request, without a gateway."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from skep.gateway.routing import Homes, least_loaded, rendezvous, seed_of


@dataclass
class Place:
    name: str
    slots: int = 4
    busy: int = 0
    prompt_bytes: int = 0

    @property
    def seed(self):
        return seed_of(self.name)


places = st.builds(
    lambda counts: [Place(f"r{i}", slots, min(busy, slots)) for i, (slots, busy) in enumerate(counts)],
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=6),
)


def test_the_rendezvous_spreads_conversations_and_moves_few_when_a_replica_goes():
    """Without one of four replicas, only its own conversations move."""
    all_four = [Place(f"r{i}") for i in range(4)]
    homes = {number: rendezvous(number * 2654435761 % 2**32, all_four).name for number in range(4000)}
    counts = [list(homes.values()).count(place.name) for place in all_four]
    assert min(counts) > 900
    left = all_four[:3]
    for number, home in homes.items():
        if home != "r3":
            assert rendezvous(number * 2654435761 % 2**32, left).name == home


@given(places, st.none() | st.integers(0, 2**32), st.integers(0, 5))
def test_the_choice_is_always_one_of_the_free_ones(all_of_them, conversation, turns):
    homes = Homes()
    free = [place for place in all_of_them if place.busy < place.slots]
    for _ in range(turns if free else 0):
        assert homes.choose(conversation, free, all_of_them) in free


@given(places, st.integers(0, 2**32))
def test_a_new_conversation_costs_no_evenness(all_of_them, conversation):
    """It has nothing cached anywhere, so the least loaded replica is as good as any."""
    free = [place for place in all_of_them if place.busy < place.slots]
    if free:
        chosen = Homes().choose(conversation, free, all_of_them)
        assert chosen.busy / chosen.slots == least_loaded(free).busy / least_loaded(free).slots


def test_the_oldest_conversation_is_forgotten_first():
    homes = Homes(remembered=2)
    both = [Place("r0"), Place("r1")]
    for conversation in (1, 2, 3):
        homes.choose(conversation, both, both)
    assert len(homes) == 2
