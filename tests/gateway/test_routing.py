"""Which replica gets a request, without a gateway."""

from dataclasses import dataclass, replace

import hypothesis.strategies as st
from hypothesis import given

from skep.gateway.admission import Admission
from skep.gateway.replica_table import ConversationAffinity, rendezvous, seed_of
from skep.gateway.values import Arrival, ReplicaSpec


@dataclass
class Place:
    name: str
    slots: int = 4
    busy: int = 0
    prompt_bytes: int = 0

    @property
    def seed(self):
        return seed_of(self.name)


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


pools = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=6)


def filled(counts):
    """A decider with replicas of so many slots, of which so many are busy."""
    decider = Admission()
    table = [ReplicaSpec(f"r{i}", "m", f"http://r{i}", slots) for i, (slots, _) in enumerate(counts)]
    for known, (one, (slots, busy)) in enumerate(zip(table, counts, strict=True)):
        drained = [replace(other, draining=True) for other in table[:known]]
        decider.set_replicas((*drained, one), 0.0)
        for number in range(min(busy, slots)):
            decider.arrive(Arrival(f"{one.name}-{number}", "m"), 0.0)
    decider.set_replicas(tuple(table), 0.0)
    return decider


@given(pools, st.integers(0, 2**32))
def test_a_new_conversation_costs_no_evenness(counts, conversation):
    """It has nothing cached anywhere, so the least loaded replica is as good as any."""
    decider = filled(counts)
    shares = {replica.name: replica.busy / replica.slots for replica in decider.table()}
    actions = decider.arrive(Arrival("q", "m", conversation=conversation), 1.0)
    assert len(actions) == (min(shares.values()) < 1)
    assert all(shares[action.replica.name] == min(shares.values()) for action in actions)


def test_the_oldest_conversation_is_forgotten_first():
    homes = ConversationAffinity(remembered=2)
    for conversation in (1, 2, 1, 3):
        homes.remember(conversation, "r0")
    assert [homes.of(conversation) for conversation in (1, 2, 3)] == ["r0", None, "r0"]
