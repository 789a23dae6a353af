"""The admission decider, without a loop and without sleeping."""

import zlib
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from skep.config.gateway_messages import AdmissionLimits, ReplicaSpec
from skep.config.keys import Priority
from skep.gateway.admission import Admission
from skep.gateway.admission_messages import Arrival, Forward, Reject, RejectCode, Withdraw
from skep.gateway.replica_table import LONGEST_OPEN_S, ConversationAffinity, load, rendezvous

INTER = Priority.INTERACTIVE
N = Priority.NORMAL
B = Priority.BATCH


def spec(name="r0", slots=2, model="m", confirms="", url=None, **fields):
    return ReplicaSpec(name, model, url or f"http://{name}", slots, confirms, **fields)


def ask(decider, name, now=0.0, priority=N, model="m", **fields):
    return decider.arrive(Arrival(name, model, priority, **fields), now)


def busy(decider, name):
    return sum(replica.busy for replica in decider.replicas() if replica.name == name)


def at(decider, name):
    """What the table says of a replica; something unknown where it has none."""
    return next(
        (replica.spec for replica in decider.replicas() if replica.name == name), spec("gone")
    )


def names(actions):
    return [action.request_id for action in actions]


def admission(*specs, request="", **limits):
    """With these replicas, at which requests of these names have arrived."""
    decider = Admission(AdmissionLimits(**{"max_queue": 4, "max_wait_s": 10.0, **limits}))
    decider.set_replicas(specs, 0.0)
    for name in request:
        ask(decider, name)
    return decider


def test_a_full_queue_rejects_the_newcomer_with_the_expected_wait():
    """Retry-After comes from the measured time of a lease: 3 waiting of 2 s each on one slot is 6
    s.
    """
    decider = admission(spec(slots=1), max_queue=2, request="a")
    decider.finished("a", 2.0)
    for name in "bcd":
        ask(decider, name, 2.0)
    (action,) = ask(decider, "e", 2.0)
    assert action == Reject("e", RejectCode.QUEUE_FULL, 6.0)


def crowd(decider, flow, count, priority):
    for number in range(count):
        ask(decider, f"{flow}{number}", float(number), priority, flow=flow)


def test_a_full_queue_lets_go_of_the_newest_of_the_longest_flow_in_the_lowest_class():
    """290 batch requests of one key had another key's interactive agent refused 20 times of 20."""
    decider = admission(spec(slots=1), max_queue=6)
    ask(decider, "held", 0.0)
    crowd(decider, "b", 3, B)
    crowd(decider, "c", 2, B)
    crowd(decider, "n", 1, N)
    assert names(ask(decider, "i", 3.0, INTER, flow="i")) == ["b2"]
    # It would only change places with b1.
    assert names(ask(decider, "c2", 3.0, B, flow="c")) == ["c2"]
    assert names(ask(decider, "d", 3.0, B, flow="d")) == ["b1"]
    assert decider.queued == 6
    decider = admission(spec(slots=1), max_queue=2)
    ask(decider, "held", 0.0)
    crowd(decider, "n", 2, N)
    assert names(ask(decider, "b", 3.0, B, flow="b")) == ["b"]  # only higher ones wait
    assert names(ask(decider, "i", 3.0, INTER, flow="i")) == ["n1"]
    assert names(ask(decider, "n2", 3.0, N, flow="n")) == ["n2"]


def test_one_crowd_in_the_lowest_class_refuses_nobody_else():
    """Whatever the class of the others: each of 20 agents with one request finds room."""
    for priority in Priority:
        decider = admission(spec(slots=1), max_queue=64)
        crowd(decider, "b", 290, B)
        refused = [
            loser
            for n in range(20)
            for loser in names(ask(decider, f"a{n}", 300.0, priority, flow=f"a{n}"))
        ]
        assert refused == [f"b{number}" for number in range(64, 44, -1)]


def test_a_request_on_its_way_to_a_slot_does_not_pass_for_the_one_in_release():
    """One active lease just granted, one releasing and still busy: the engine's 1 is the releasing
    one.
    """
    decider = admission(spec(slots=2, confirms="slots"))
    decider.engine_busy(at(decider, "r0"), 0, 0.0, 0.0)
    ask(decider, "a", 1.0)
    decider.hung_up("a", 2.0)
    ask(decider, "b", 2.0)
    ask(decider, "c", 2.0)
    assert decider.engine_busy(at(decider, "r0"), 1, 2.1, 2.1) == []
    assert busy(decider, "r0") == 2
    (action,) = decider.engine_busy(at(decider, "r0"), 1, 2.3, 2.3)
    assert action.request_id == "c"


def test_a_request_that_may_still_reach_its_slot_keeps_it_although_its_client_left():
    """It was sent and given up before the engine had read it:
    the engine's 0 says nothing of it.
    """
    decider = admission(spec(slots=1, confirms="slots"))
    decider.engine_busy(at(decider, "r0"), 0, 0.0, 0.0)
    ask(decider, "a", 1.0)
    decider.hung_up("a", 1.01)
    ask(decider, "b", 1.02)
    assert decider.engine_busy(at(decider, "r0"), 0, 1.02, 1.03) == []
    (action,) = decider.engine_busy(at(decider, "r0"), 0, 1.12, 1.13)
    assert action.request_id == "b"


@pytest.mark.parametrize("confirms", ["slots", ""], ids=["never confirms", "cannot be asked"])
def test_an_engine_that_does_not_say_so_gives_its_slot_back_after_the_bound(confirms):
    decider = admission(spec(slots=1, confirms=confirms, release_bound_s=2.0))
    decider.engine_busy(at(decider, "r0"), 0, 0.0, 0.0)
    ask(decider, "a")
    assert decider.hung_up("a", 1.0) == ask(decider, "b", 1.0) == decider.tick(2.9) == []
    assert names(decider.tick(3.1)) == ["b"]


def test_a_replica_seen_for_the_first_time_is_full_until_it_has_been_asked():
    """A restarted gateway must not overfill an engine that still works for its predecessor.

    What an old process says of its slots is not taken for the new one's word.
    """
    decider = admission(spec("r0", 2, confirms="slots"))
    old = at(decider, "r0")
    decider.set_replicas((spec("r0", 2, confirms="slots", url="http://new"),), 1.0)
    assert decider.engine_busy(old, 0, 0.5, 1.1) == ask(decider, "a", 1.2) == []
    (action,) = decider.engine_busy(at(decider, "r0"), 1, 1.3, 1.3)
    assert action.request_id == "a"
    assert busy(decider, "r0") == 2


def test_an_interactive_request_goes_before_batch_that_waits_longer():
    decider = admission(spec(slots=1), request=["running"])
    for name, now, priority in (("b1", 0.1, B), ("n1", 0.2, N), ("i1", 0.3, INTER)):
        ask(decider, name, now, priority)
    order = ["running"]
    for now in (1.0, 2.0, 3.0):
        order += names(decider.finished(order[-1], now))
    assert order[1:] == ["i1", "n1", "b1"]


def test_batch_ages_so_that_it_cannot_starve():
    """With one interactive request always waiting, batch is served once it has waited twice the
    aging time longer.
    """
    decider = admission(spec(slots=1), max_queue=1000, max_wait_s=1e9, aging_s=10.0)
    ask(decider, "first", 0.0, INTER)
    ask(decider, "batch", 0.0, B)
    ask(decider, "i0", 0.0, INTER)
    last = "first"
    now = 0.0
    for number in range(1, 40):
        now += 1.0
        ask(decider, f"i{number}", now, INTER)
        (action,) = decider.finished(last, now)
        last = action.request_id
        if last == "batch":
            break
    assert last == "batch"
    assert 20.0 <= now <= 23.0


def test_flows_take_turns_whatever_their_number_of_requests():
    decider = admission(spec(slots=3), max_queue=1000)
    running = []
    for flow, count in (("a", 60), ("b", 20), ("c", 10)):
        for number in range(count):
            running += [a.request_id for a in ask(decider, f"{flow}-{number}", 0.0, flow=flow)]
    served = []
    for now in range(30):
        (action,) = decider.finished(running.pop(0), float(now))
        running.append(action.request_id)
        served.append(action.request_id.partition("-")[0])
    assert served.count("c") == 10
    assert abs(served[3:].count("b") - served[3:].count("a")) <= 2


def test_reserved_slots_are_for_interactive_requests_alone():
    decider = admission(spec(slots=3, reserve=1))
    assert len(ask(decider, "n1")) == len(ask(decider, "n2")) == 1
    assert ask(decider, "n3") == []
    assert ask(decider, "b1", priority=B) == []
    assert names(ask(decider, "i1", priority=INTER)) == ["i1"]
    assert decider.finished("i1", 1.0) == []
    assert names(decider.finished("n1", 1.0)) == ["n3"]


def soft_limited():
    """Return admission with three of five slots for agents that wait for their answer, and all
    five for batch, which has them all while two more of its requests wait.
    """
    decider = admission(spec(slots=5, soft_slots=3), max_queue=50)
    for number in range(7):
        ask(decider, f"b{number}", 0.0, B)
    assert decider.in_flight == 5
    return decider


def test_a_soft_limit_lifts_when_only_batch_is_there():
    assert names(soft_limited().finished("b0", 1.0)) == ["b5"]


def test_a_soft_limit_keeps_answers_quick_beside_batch():
    decider = soft_limited()
    decider.finished("b0", 1.0)
    assert ask(decider, "i0", 1.0, INTER) == []
    assert names(decider.finished("b1", 2.0)) == ["i0"]
    # Four are left, one of them interactive: batch stays below three.
    assert decider.finished("b2", 3.0) == []
    assert decider.finished("b3", 3.0) == []
    assert names(decider.finished("b4", 3.0)) == ["b6"]
    for number in range(1, 4):
        ask(decider, f"i{number}", 4.0, INTER)
    assert decider.queued == 1
    assert names(decider.finished("i0", 5.0)) == ["i3"]


def test_a_conversation_leaves_its_replica_only_when_that_is_clearly_busier():
    decider = admission(spec("r0", 4), spec("r1", 4))
    home, beside, away = (
        ask(decider, f"t{number}", conversation=77)[0].replica.name for number in range(3)
    )
    assert home == beside != away


def test_one_shared_prompt_among_32_agents_spreads_evenly():
    """Routers that send a prefix to the replica that has it fill one replica and leave the others
    idle.
    """
    decider = admission(*(spec(f"r{i}", 8) for i in range(4)), max_queue=100)
    for number in range(32):
        ask(decider, f"a{number}", conversation=5)
    assert [busy(decider, f"r{i}") for i in range(4)] == [8, 8, 8, 8]
    decider = admission(*(spec(f"r{i}", 16) for i in range(4)))
    for number in range(32):
        ask(decider, f"a{number}", conversation=5)
    counts = [busy(decider, f"r{i}") for i in range(4)]
    assert max(counts) - min(counts) <= 4


def test_of_equally_busy_replicas_the_one_with_fewer_prompt_bytes_is_next():
    decider = admission(spec("r0", 4), spec("r1", 4))
    (long,) = ask(decider, "long", prompt_bytes=100_000)
    (short,) = ask(decider, "short", prompt_bytes=10)
    assert short.replica.name != long.replica.name
    (third,) = ask(decider, "third", prompt_bytes=10)
    assert third.replica.name == short.replica.name


def test_a_replica_without_a_sign_of_life_loses_its_requests_and_a_byte_is_one():
    """Also one that left the table."""
    decider = admission(spec("r0", 2), request="a")
    decider.heard(at(decider, "r0"), 50.0)
    assert decider.checked(at(decider, "r0"), False, 70.0) == []
    assert decider.checked(at(decider, "r0"), False, 111.0) == [Withdraw("a")]
    decider = admission(spec("r0", 2), request="a")
    old = at(decider, "r0")
    decider.set_replicas((spec("r0", 2, url="http://new"),), 1.0)
    assert decider.checked(old, False, 100.0) == [Withdraw("a")]
    assert decider.checked(at(decider, "r0"), True, 100.0) == []


def test_a_replica_that_leaves_the_table_and_comes_back_still_has_what_it_had():
    """Found by havoc: it was filled a second time while its requests were on their way to their
    slots.
    """
    decider = admission(spec("r0", 2, confirms="slots"), max_queue=9)
    decider.engine_busy(at(decider, "r0"), 0, 0.0, 0.0)
    ask(decider, "a")
    ask(decider, "b")
    decider.set_replicas((), 1.0, models=("m",))
    decider.set_replicas((spec("r0", 2, confirms="slots"),), 1.1)
    for name in "cd":
        ask(decider, name, 1.2)
    assert decider.engine_busy(at(decider, "r0"), 0, 1.3, 1.3) == []
    assert busy(decider, "r0") == 2
    assert names(decider.finished("a", 2.0)) == ["c"]


def test_a_request_that_engines_drop_does_not_close_a_replica_that_answers_others():
    decider = admission(spec("r0", 4), max_queue=50)
    for number in range(20):
        ask(decider, f"good{number}", float(number))
        ask(decider, f"poison{number}", float(number))
        decider.failed(f"poison{number}", float(number))
        decider.hung_up(f"poison{number}", float(number))
        decider.answering(f"good{number}", number + 0.1)
        decider.finished(f"good{number}", number + 0.2)
    assert {replica.breaker.state(20.0) for replica in decider.replicas()} == {"closed"}


def test_a_failed_request_waits_a_moment_for_another_replica():
    decider = admission(spec("r0", 1), spec("r1", 1), request="a")
    (second,) = ask(decider, "b")
    assert decider.failed("a", 1.0) == []
    assert decider.tick(1.5) == []
    (again,) = decider.finished("b", 1.6)
    assert (again.request_id, again.replica.name) == ("a", second.replica.name)
    ask(decider, "c", 1.7)
    assert decider.failed("a", 2.0)[0].code is RejectCode.REPLICA_LOST
    ask(decider, "d", 2.0)
    assert decider.failed("c", 3.0) == []
    assert names(decider.tick(4.1)) == ["c"]


def test_a_replica_without_slots_gets_nothing_and_hurts_nobody():
    decider = admission(spec("r0", 0), spec("r1", 1))
    assert [action.replica.name for action in ask(decider, "a", conversation=1)] == ["r1"]
    assert ask(decider, "b", conversation=2) == []
    assert decider.anywhere("m", 0.0) is not None
    (action,) = decider.set_replicas((spec("r0", 1), spec("r1", 1)), 1.0)
    assert (action.request_id, action.replica.name) == ("b", "r0")
    decider.set_replicas((spec("r0", 0), spec("r1", 0)), 1.0)
    (full,) = [*ask(decider, "c", 1.0, max_wait_s=1.0), *decider.tick(3.0)]
    assert isinstance(full, Reject)


# Which replica gets a conversation


def test_the_rendezvous_spreads_conversations_and_moves_few_when_a_replica_goes():
    """Without one of four replicas, only its own conversations move."""
    replicas = [SimpleNamespace(name=f"r{i}", seed=zlib.crc32(f"r{i}".encode())) for i in range(4)]
    homes = {
        number: rendezvous(number * 2654435761 % 2**32, replicas).name for number in range(4000)
    }
    assert min(Counter(homes.values()).values()) > 900
    for number, home in homes.items():
        if home != "r3":
            assert rendezvous(number * 2654435761 % 2**32, replicas[:3]).name == home


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_a_new_conversation_costs_no_evenness(counts, conversation):
    """It has nothing cached anywhere, so the least loaded replica is as good as any."""
    table = [spec(f"r{i}", slots) for i, (slots, _) in enumerate(counts)]
    decider = admission()
    draining = []
    for newest, (slots, busy) in zip(table, counts, strict=True):
        decider.set_replicas((*draining, newest), 0.0)
        for number in range(min(busy, slots)):
            ask(decider, f"{newest.name}-{number}")
        draining.append(replace(newest, draining=True))
    decider.set_replicas(tuple(table), 0.0)
    shares = {replica.name: replica.busy / replica.slots for replica in decider.table()}
    least_share = min(shares.values())
    actions = ask(decider, "q", 1.0, conversation=conversation)
    assert len(actions) == (least_share < 1)
    assert all(shares[action.replica.name] == least_share for action in actions)


def test_the_oldest_conversation_is_forgotten_first():
    homes = ConversationAffinity(remembered=2)
    for conversation in (1, 2, 1, 3):
        homes.remember(conversation, "r0")
    assert [homes.of(conversation) for conversation in (1, 2, 3)] == ["r0", None, "r0"]


class AdmissionMachine(RuleBasedStateMachine):
    """Whatever the order of events: no slot overfilled, none idle that somebody may have, every
    request ends once.
    """

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.decider = Admission(AdmissionLimits(max_queue=3, max_wait_s=5.0, dead_after_s=6.0))
        self.where = {}  # request -> "waiting" | "running" | "ended"
        self.generation = 0
        self.take(self.decider.set_replicas(self.table(2, 1), 0.0, models=("m",)))

    def table(self, *slots, draining=None, reserve=0, soft=None):
        return tuple(
            spec(
                f"r{i}",
                n,
                confirms="slots" if i == 0 else "",
                url=f"http://r{i}/{self.generation}",
                draining=i == draining,
                reserve=min(reserve, n - 1),
                soft_slots=soft,
            )
            for i, n in enumerate(slots)
            if n
        )

    def take(self, actions):
        for action in actions:
            if isinstance(action, Withdraw):
                assert self.where[action.request_id] == "running"
                self.where[action.request_id] = "waiting"
                self.take(self.decider.gave_up(action.request_id, self.now))
                continue
            assert self.where[action.request_id] == "waiting"
            self.where[action.request_id] = "running" if isinstance(action, Forward) else "ended"
            if isinstance(action, Forward):
                assert not action.replica.draining
                (replica,) = (
                    replica
                    for replica in self.decider.replicas()
                    if replica.spec is action.replica
                )
                assert replica.busy <= action.replica.slots
                assert replica.breaker.trial in (None, action.request_id), "one trial at a time"

    def pick(self, data, state):
        names = sorted(name for name, where in self.where.items() if where == state)
        if names:
            return data.draw(st.sampled_from(names))
        return None

    @rule(
        priority=st.sampled_from(Priority),
        flow=st.sampled_from("xyz"),
        talk=st.none() | st.integers(0, 3),
        size=st.integers(0, 1000),
        wait=st.none() | st.floats(0, 10),
    )
    def arrive(self, priority, flow, talk, size, wait):
        self.count += 1
        name = f"q{self.count}"
        self.where[name] = "waiting"
        self.take(
            self.decider.arrive(Arrival(name, "m", priority, flow, talk, size, wait), self.now)
        )

    @rule(
        data=st.data(),
        how=st.sampled_from(["finished", "hung_up"]),
        twice=st.booleans(),
        answered=st.booleans(),
    )
    def end_running(self, data, how, twice, answered):
        name = self.pick(data, "running")
        if name:
            if answered:
                self.decider.answering(name, self.now)
            self.where[name] = "ended"
            for _ in range(1 + twice):
                self.take(getattr(self.decider, how)(name, self.now))

    @rule(data=st.data())
    def complain(self, data):
        name = self.pick(data, "running")
        if name:
            self.decider.may_retry(name, self.now)
            self.decider.answering(name, self.now, complaint=True)

    @rule(data=st.data())
    def leave_queue(self, data):
        name = self.pick(data, "waiting")
        if name:
            self.where[name] = "ended"
            self.take(self.decider.hung_up(name, self.now))

    @rule(data=st.data(), how=st.sampled_from(["failed", "gave_up"]))
    def fail_running(self, data, how):
        name = self.pick(data, "running")
        if name:
            self.where[name] = "waiting"
            self.take(getattr(self.decider, how)(name, self.now))

    @rule(
        data=st.data(),
        how=st.sampled_from(["finished", "hung_up", "failed", "gave_up", "not_sent"]),
    )
    def report_an_end_once_more(self, data, how):
        name = self.pick(data, "ended")
        if name:
            self.take(getattr(self.decider, how)(name, self.now))

    @rule(seconds=st.floats(0.1, 4.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.decider.tick(self.now))

    @rule(busy=st.integers(0, 3))
    def engine_speaks(self, busy):
        self.take(self.decider.engine_busy(at(self.decider, "r0"), busy, self.now, self.now))

    @rule(name=st.sampled_from(["r0", "r1"]), ok=st.booleans())
    def check(self, name, ok):
        self.take(self.decider.checked(at(self.decider, name), ok, self.now))

    @rule(
        a=st.integers(0, 3),
        b=st.integers(0, 2),
        restarted=st.booleans(),
        draining=st.none() | st.integers(0, 1),
        reserve=st.integers(0, 1),
        soft=st.none() | st.integers(1, 2),
    )
    def reload(self, a, b, restarted, draining, reserve, soft):
        self.generation += restarted
        table = self.table(a, b, draining=draining, reserve=reserve, soft=soft)
        self.take(self.decider.set_replicas(table, self.now, models=("m",)))

    @rule(max_queue=st.integers(0, 3))
    def other_limits(self, max_queue):
        self.take(
            self.decider.set_limits(AdmissionLimits(max_queue=max_queue, max_wait_s=5.0), self.now)
        )

    @invariant()
    def nothing_is_lost(self):
        running = sum(where == "running" for where in self.where.values())
        assert self.decider.in_flight == running
        assert self.decider.queued == sum(where == "waiting" for where in self.where.values())
        for replica in self.decider.replicas():
            assert 0 <= replica.active <= replica.busy
            assert replica.prompt_bytes == sum(
                lease.entry.prompt_bytes for lease in replica.leases.values()
            )
            assert replica.breaker.trial is None or replica.breaker.trial in replica.leases
            assert replica.leases or replica.breaker.allows(self.now + LONGEST_OPEN_S), (
                "it is tried again in the end"
            )

    @invariant()
    def nobody_waits_for_a_slot_it_may_have(self):
        for pool in self.decider._models.values():
            for entry in pool.queue:
                if entry.avoid is not None and self.now < entry.avoid_until:
                    continue  # it may rather wait for another replica, and those behind it with it
                if any(
                    queued.avoid is not None and self.now < queued.avoid_until
                    for queued in pool.queue
                ):
                    continue
                open_to_it = [r for r in pool.alive(self.now) if may_take(pool, r, entry.priority)]
                assert not open_to_it, (entry, open_to_it)

    @invariant()
    def the_least_loaded_replica_is_that_of_a_plain_search(self):
        for pool in self.decider._models.values():
            for priority in Priority:
                free = [
                    replica
                    for replica in pool.alive(self.now)
                    if may_take(pool, replica, priority)
                ]
                least_loaded = min(
                    free,
                    key=lambda replica: (*load(replica), replica.busy - replica.slots),
                    default=None,
                )
                entry = Arrival("new", "m", priority, arrived_at=self.now, deadline=self.now)
                assert pool._least_loaded(entry, self.now) is least_loaded

    @invariant()
    def the_requests_of_a_flow_under_way_are_counted_right(self):
        for pool in self.decider._models.values():
            leases = [lease for replica in pool.replicas for lease in replica.leases.values()]
            active = Counter(lease.entry.flow for lease in leases if lease.releasing_until is None)
            assert pool.queue._active == active
            for name, flow in chain(*(flows.items() for flows in pool.queue._classes.values())):
                assert flow.turn[0] == active[name]

    def teardown(self):
        """The end: all slots come back."""
        for name, where in list(self.where.items()):
            if where == "waiting":
                self.where[name] = "ended"
                self.take(self.decider.hung_up(name, self.now))
        while running := [name for name, where in self.where.items() if where == "running"]:
            self.where[running[0]] = "ended"
            self.take(self.decider.finished(running[0], self.now))
        self.now += 1000.0
        self.take(self.decider.tick(self.now))
        assert self.decider.in_flight == self.decider.queued == 0
        assert all(
            replica.busy == 0 and not replica.prompt_bytes for replica in self.decider.replicas()
        )
        assert not self.decider._leases


def may_take(pool, replica, priority):
    return replica.allows(priority, alone=pool.queue.only_batch())


AdmissionMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None
)
TestAdmissionMachine = AdmissionMachine.TestCase
