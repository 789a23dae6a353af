"""The admission decider, without a loop and without sleeping."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skep.gateway.admission import Admission, AdmissionLimits, Forward, Reject, RejectCode, ReplicaSpec


def spec(name="r0", slots=2, model="m", confirms=False, url=None):
    return ReplicaSpec(name, model, url or f"http://{name}", slots, confirms)


def admission(*specs, max_queue=4, max_wait_s=10.0):
    decider = Admission(AdmissionLimits(max_queue=max_queue, max_wait_s=max_wait_s))
    decider.set_replicas(specs, 0.0)
    return decider


def test_requests_beyond_the_slots_wait_and_are_served_in_order():
    decider = admission(spec(slots=1))
    assert [type(a) for a in decider.arrive("a", "m", 0.0)] == [Forward]
    assert decider.arrive("b", "m", 0.1) == []
    assert decider.arrive("c", "m", 0.2) == []
    (action,) = decider.finished("a", 1.0)
    assert (action.request_id, round(action.queued_s, 3)) == ("b", 0.9)


def test_a_full_queue_rejects_the_newcomer_with_the_expected_wait():
    """Retry-After comes from the measured time of a lease: 3 waiting of 2 s each on one slot is 6 s."""
    decider = admission(spec(slots=1), max_queue=2)
    decider.arrive("a", "m", 0.0)
    decider.finished("a", 2.0)
    for name in "bcd":
        decider.arrive(name, "m", 2.0)
    (action,) = decider.arrive("e", "m", 2.0)
    assert action == Reject("e", RejectCode.QUEUE_FULL, 6.0)


def test_the_least_loaded_replica_gets_the_next_request():
    decider = admission(spec("r0", 4), spec("r1", 2))
    names = [decider.arrive(str(i), "m", 0.0)[0].replica.name for i in range(6)]
    assert sorted(names) == ["r0"] * 4 + ["r1"] * 2
    assert set(names[:2]) == {"r0", "r1"}


def test_ending_a_lease_twice_frees_one_slot():
    decider = admission(spec(slots=1))
    decider.arrive("a", "m", 0.0)
    decider.arrive("b", "m", 0.0)
    decider.arrive("c", "m", 0.0)
    assert len(decider.finished("a", 1.0)) == 1
    assert decider.finished("a", 1.0) == []
    assert decider.hung_up("a", 1.0) == []
    assert decider.failed("a", 1.0) == []
    assert decider.busy("r0") == 1


def test_a_client_that_leaves_the_queue_never_reaches_an_engine():
    decider = admission(spec(slots=1))
    decider.arrive("a", "m", 0.0)
    decider.arrive("b", "m", 0.0)
    decider.hung_up("b", 0.5)
    assert decider.finished("a", 1.0) == []
    assert decider.queued == 0


def test_a_hung_up_slot_is_handed_out_only_when_the_engine_says_it_is_free():
    """llama.cpp works on for seconds after a client has left during prefill."""
    decider = admission(spec(slots=1, confirms=True))
    decider.engine_busy("r0", 0, 0.0, 0.0)
    decider.arrive("a", "m", 0.0)
    decider.arrive("b", "m", 0.0)
    assert decider.hung_up("a", 1.0) == []
    assert decider.engine_busy("r0", 1, 1.1, 1.1) == []
    (action,) = decider.engine_busy("r0", 0, 1.2, 1.2)
    assert isinstance(action, Forward)
    assert action.request_id == "b"


def test_a_request_that_has_not_reached_its_slot_yet_does_not_pass_for_the_one_in_release():
    """One active lease just granted, one releasing and still busy: the engine's 1 is the releasing one."""
    decider = admission(spec(slots=2, confirms=True))
    decider.engine_busy("r0", 0, 0.0, 0.0)
    decider.arrive("a", "m", 1.0)
    decider.hung_up("a", 2.0)
    decider.arrive("b", "m", 2.0)
    decider.arrive("c", "m", 2.0)
    assert decider.engine_busy("r0", 1, 2.1, 2.1) == []
    assert decider.busy("r0") == 2
    (action,) = decider.engine_busy("r0", 1, 2.3, 2.3)
    assert action.request_id == "c"


def test_an_engine_that_never_confirms_gives_its_slot_back_after_the_bound():
    decider = admission(spec(slots=1, confirms=True), max_wait_s=100.0)
    decider.engine_busy("r0", 0, 0.0, 0.0)
    decider.arrive("a", "m", 0.0)
    decider.hung_up("a", 1.0)
    decider.arrive("b", "m", 1.0)
    assert decider.tick(5.0) == []
    (action,) = decider.tick(31.1)
    assert action.request_id == "b"


def test_a_replica_seen_for_the_first_time_is_full_until_it_has_been_asked():
    """A restarted gateway must not overfill an engine that still works for its predecessor."""
    decider = admission(spec(slots=2, confirms=True))
    assert decider.arrive("a", "m", 0.0) == []
    (action,) = decider.engine_busy("r0", 1, 0.1, 0.1)
    assert action.request_id == "a"
    assert decider.busy("r0") == 2


def test_a_request_whose_replica_gave_nothing_is_tried_on_another_one_and_then_rejected():
    decider = admission(spec("r0", 1), spec("r1", 1))
    (first,) = decider.arrive("a", "m", 0.0)
    (second,) = decider.failed("a", 0.1)
    assert second.replica.name != first.replica.name
    (third,) = decider.failed("a", 0.2)
    assert (third.request_id, third.code) == ("a", RejectCode.REPLICA_LOST)


def test_a_model_without_a_replica_for_the_moment_keeps_its_queue():
    """A crashed engine that is being restarted costs its clients a wait, not an error."""
    decider = admission(spec(slots=1))
    decider.set_replicas((), 1.0, models=("m",))
    assert decider.arrive("a", "m", 1.0) == []
    (action,) = decider.set_replicas((spec(slots=1, url="http://new"),), 2.0)
    assert action.request_id == "a"


def test_an_unknown_model_is_rejected_at_once():
    decider = admission(spec())
    assert decider.arrive("a", "other", 0.0) == [Reject("a", RejectCode.UNKNOWN_MODEL)]


def test_closing_rejects_the_queue_and_lets_the_running_ones_end():
    decider = admission(spec(slots=1))
    decider.arrive("a", "m", 0.0)
    decider.arrive("b", "m", 0.0)
    assert [action.request_id for action in decider.close()] == ["b"]
    assert decider.in_flight == 1
    assert decider.finished("a", 1.0) == []
    assert decider.arrive("c", "m", 1.0)[0].code is RejectCode.SHUTTING_DOWN


class AdmissionMachine(RuleBasedStateMachine):
    """Whatever the order of events: no slot overfilled, every request ends exactly once."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.decider = Admission(AdmissionLimits(max_queue=3, max_wait_s=5.0))
        self.where = {}  # request -> "waiting" | "running" | "ended"
        self.generation = 0
        self.take(self.decider.set_replicas(self.table(2, 1), 0.0, models=("m",)))

    def table(self, *slots):
        return tuple(
            spec(f"r{i}", n, confirms=i == 0, url=f"http://r{i}/{self.generation}") for i, n in enumerate(slots) if n
        )

    def take(self, actions):
        for action in actions:
            assert self.where[action.request_id] == "waiting"
            self.where[action.request_id] = "running" if isinstance(action, Forward) else "ended"
            if isinstance(action, Forward):
                assert len(self.decider._replicas[action.replica.name].leases) <= action.replica.slots

    def pick(self, data, state):
        names = sorted(name for name, where in self.where.items() if where == state)
        return data.draw(st.sampled_from(names)) if names else None

    @rule()
    def arrive(self):
        self.count += 1
        name = f"q{self.count}"
        self.where[name] = "waiting"
        self.take(self.decider.arrive(name, "m", self.now))

    @rule(data=st.data(), how=st.sampled_from(["finished", "hung_up"]), twice=st.booleans())
    def end_running(self, data, how, twice):
        name = self.pick(data, "running")
        if name:
            self.where[name] = "ended"
            for _ in range(1 + twice):
                self.take(getattr(self.decider, how)(name, self.now))

    @rule(data=st.data())
    def leave_queue(self, data):
        name = self.pick(data, "waiting")
        if name:
            self.where[name] = "ended"
            self.take(self.decider.hung_up(name, self.now))

    @rule(data=st.data())
    def fail_running(self, data):
        name = self.pick(data, "running")
        if name:
            self.where[name] = "waiting"
            self.take(self.decider.failed(name, self.now))

    @rule(seconds=st.floats(0.1, 4.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.decider.tick(self.now))

    @rule(busy=st.integers(0, 3))
    def engine_speaks(self, busy):
        self.take(self.decider.engine_busy("r0", busy, self.now, self.now))

    @rule(a=st.integers(0, 3), b=st.integers(0, 2), restarted=st.booleans())
    def reload(self, a, b, restarted):
        self.generation += restarted
        self.take(self.decider.set_replicas(self.table(a, b), self.now, models=("m",)))

    @invariant()
    def nothing_is_lost(self):
        running = sum(where == "running" for where in self.where.values())
        assert self.decider.in_flight == running
        assert self.decider.queued == sum(where == "waiting" for where in self.where.values())
        assert self.decider.queued <= 3 + running + 8


AdmissionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAdmissionMachine = AdmissionMachine.TestCase
