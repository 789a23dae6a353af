"""Which batches are under way at once, and which one gives way. No loop, no clock."""

from skep.gateway.batch.scheduler import TURN_S, WAITING_TURN_S, NextBatch, RunningBatch, choose
from skep.gateway.batch.store import UnfinishedBatch

MOST = 4


def batch(name, owner="ann", model="m"):
    return UnfinishedBatch(name, owner, model, 1e9)


def under_way(*batches, waits=False, since=0.0):
    return [RunningBatch(one, since + place, waits) for place, one in enumerate(batches)]


def pick(waiting, seats, had_turn=None, now=0.0):
    return choose(waiting, seats, had_turn or {}, now, MOST)


def test_the_oldest_begins_while_there_is_room():
    assert pick([batch("a"), batch("b")], under_way(batch("c"))) == NextBatch(batch("a"))
    assert pick([], []) is None


def test_who_has_the_fewest_begins_first():
    seats = under_way(batch("a"), batch("b"), batch("c", "bob"))
    assert pick([batch("d"), batch("e", "bob"), batch("f", "eve")], seats).begins.id == "f"
    assert pick([batch("d"), batch("e", "ann", "other")], seats).begins.id == "e"


def test_one_owners_batches_give_way_until_the_shares_are_alike():
    ann, bob = [batch(f"a{i}") for i in range(9)], [batch(f"b{i}", "bob") for i in range(9)]
    seats = under_way(*ann[:MOST])
    assert pick([*ann[MOST:], *bob], seats) == NextBatch(bob[0], ann[3])
    seats = under_way(*ann[:3], bob[0])
    assert pick([*ann[3:], *bob[1:]], seats) == NextBatch(bob[1], ann[2])
    seats = under_way(*ann[:2], *bob[:2])
    assert pick([*ann[2:], *bob[2:]], seats) is None


def test_a_model_that_is_not_loaded_does_not_block_another_model_of_its_owner():
    asleep = [batch(f"a{i}", model="asleep") for i in range(9)]
    seats = under_way(*asleep[:MOST], waits=True)
    assert pick([*asleep[MOST:], batch("b", model="awake")], seats).begins.id == "b"
    assert pick(asleep[MOST:], seats) is None


def test_what_waits_gives_way_before_what_is_being_answered():
    seats = [*under_way(batch("a"), waits=True), *under_way(batch("b"), batch("c"), batch("d"), since=5.0)]
    assert pick([batch("e", "bob")], seats).gives_way.id == "a"


def test_a_file_that_is_being_read_or_written_does_not_give_way():
    assert pick([batch("e", "bob")], under_way(*(batch(f"a{i}") for i in range(MOST)), waits=None)) is None


def test_where_all_have_the_same_batches_take_turns():
    seats = under_way(*(batch(f"a{i}", f"owner {i}", "asleep") for i in range(MOST)), waits=True)
    late = [batch("late", "eve"), batch("later", "zoe")]
    assert pick(late, seats, now=WAITING_TURN_S - 1) is None
    assert pick(late, seats, now=WAITING_TURN_S) == NextBatch(late[0], seats[0].batch)
    assert pick(late, seats, {"late": 1.0}, now=WAITING_TURN_S).begins.id == "later"
    assert pick(late[:1], seats, {"late": 1.0}, now=WAITING_TURN_S) is None  # it had its turn a moment ago
    assert pick(late[:1], seats, {"late": 1.0}, now=WAITING_TURN_S + 1) == NextBatch(late[0], seats[0].batch)
    seats = under_way(*(batch(f"a{i}", f"owner {i}") for i in range(MOST)))
    assert pick(late, seats, now=TURN_S - 1) is None
    assert pick(late, seats, now=TURN_S) == NextBatch(late[0], seats[0].batch)


def test_batches_of_one_owner_for_one_model_take_no_turns():
    """The next one would wait for the same."""
    seats = under_way(*(batch(f"a{i}") for i in range(MOST)), waits=True)
    assert pick([batch("late")], seats, now=TURN_S) is None
