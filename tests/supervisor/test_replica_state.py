"""What each replica is to be, and what follows: the decider alone, without processes or clocks."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from skep.supervisor.lifecycle import Life, ReplicaState
from skep.supervisor.replica_state import (
    Observed,
    ReplicaAction,
    ReplicaEntry,
    ReplicaOrder,
    Wish,
    reconcile,
)

BEGIN = [ReplicaAction(ReplicaOrder.BEGIN, "m-0")]
END = [ReplicaAction(ReplicaOrder.END, "m-0")]
NOTHING = Observed()
ENDED = Observed(ended=frozenset({"m-0"}))
IDLE = Observed(busy={"m-0": 0})
BUSY = Observed(busy={"m-0": 1})


def begun(**fields):
    """A replica that has its process and is ready."""
    entry = ReplicaEntry(name="m-0", life=Life(state=ReplicaState.READY), **fields)
    assert reconcile([entry], NOTHING, 0.0) == BEGIN
    return entry


def test_a_replica_is_begun_once():
    assert reconcile([begun()], NOTHING, 1.0) == []


def test_one_whose_task_ends_by_itself_is_not_begun_again():
    assert reconcile([begun()], ENDED, 1.0) == []


def test_a_dormant_one_is_begun_when_it_is_loaded():
    entry = ReplicaEntry(name="m-0", life=Life(), wish=Wish.UNLOADED)
    assert entry.is_dormant
    assert reconcile([entry], NOTHING, 0.0) == []
    entry.load()
    assert reconcile([entry], NOTHING, 0.0) == BEGIN


def test_a_busy_one_is_ended_when_its_time_is_up():
    entry = begun()
    entry.remove(end_at=30.0)
    assert reconcile([entry], BUSY, 29.9) == []
    assert reconcile([entry], BUSY, 30.0) == END


def test_an_idle_one_is_ended_before_its_time_is_up():
    entry = begun()
    entry.pause(end_at=30.0)
    assert reconcile([entry], NOTHING, 1.0) == [], "nobody has asked the gateway yet"
    assert reconcile([entry], IDLE, 1.0) == END


def test_a_model_that_is_held_keeps_its_process_though_it_is_idle():
    """Eviction decides by figures of its own when it is unloaded."""
    entry = begun()
    entry.unload()
    assert entry.gets_nothing
    assert reconcile([entry], IDLE, 1e9) == []
    entry.unload(end_at=0.0)
    assert reconcile([entry], NOTHING, 0.0) == END


def test_one_that_is_loaded_while_it_ends_begins_again_after_its_end():
    entry = begun()
    entry.unload(end_at=0.0)
    assert reconcile([entry], NOTHING, 0.0) == END
    entry.load()
    assert reconcile([entry], NOTHING, 1.0) == []
    assert reconcile([entry], ENDED, 2.0) == BEGIN


@pytest.mark.parametrize("leave", [ReplicaEntry.unload, ReplicaEntry.remove, ReplicaEntry.pause])
def test_an_end_that_is_due_is_not_put_off(leave):
    entry = begun()
    entry.unload(end_at=1.0)
    leave(entry, 100.0)
    assert reconcile([entry], BUSY, 1.0) == END


def test_a_drained_replica_is_still_drained_after_an_unload():
    entry = begun()
    entry.drain(over=False)
    entry.unload(end_at=0.0)
    reconcile([entry], NOTHING, 0.0)
    reconcile([entry], ENDED, 1.0)
    entry.load()
    assert reconcile([entry], NOTHING, 2.0) == BEGIN
    assert entry.gets_nothing


def test_what_replaces_one_that_is_gone_sleeps_if_its_model_was_unloaded_meanwhile():
    entry = begun()
    entry.remove(end_at=30.0)
    assert not entry.lasting_wish.sleeps
    entry.unload()
    assert entry.lasting_wish.sleeps
    entry.load()
    assert (entry.wish, entry.lasting_wish) == (Wish.GONE, Wish.SERVE)


@pytest.mark.parametrize(
    ("state", "restarts", "gets_nothing"),
    [
        (ReplicaState.READY, 3, True),
        (ReplicaState.READY, 4, False),
        (ReplicaState.BACKOFF, 3, False),
    ],
    ids=["not yet restarted", "restarted in a moment", "on its way"],
)
def test_one_that_is_to_restart_gets_nothing_until_it_has(state, restarts, gets_nothing):
    entry = begun()
    entry.life.restarts = 3
    entry.rest()
    entry.life.state, entry.life.restarts = state, restarts
    reconcile([entry], NOTHING, 0.0)
    assert entry.gets_nothing == gets_nothing


class ReplicaWorld(RuleBasedStateMachine):
    """Wishes in any order, processes that end when they like to, and an executor that obeys."""

    names = Bundle("names")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.entries = {}
        self.processes = set()  # begun, and not both told to end and ended
        self.stopping = set()  # told to end
        self.ended = set()  # as told or by themselves, since they were begun
        self.busy = {}

    def look(self, busy=()):
        for action in self.reconcile(busy):
            name = action.name
            entry = self.entries[name]
            if action.order is ReplicaOrder.BEGIN:
                assert name not in self.processes, "nothing is begun while it has a process"
                assert entry.wish.has_process
                self.processes.add(name)
                self.ended.discard(name)
            else:
                assert name in self.processes
                assert name not in self.stopping, "nothing is ended twice"
                assert not entry.wish.has_process
                assert not self.busy[name] or self.now >= entry.end_at
                self.stopping.add(name)
        assert self.reconcile(busy) == [], "asked again, there is nothing to do"

    def reconcile(self, busy):
        observed = Observed(frozenset(self.ended), {name: self.busy[name] for name in busy})
        ended = self.stopping & self.ended
        actions = reconcile(self.entries.values(), observed, self.now)
        self.stopping -= ended
        self.processes -= ended
        return actions

    @rule(target=names, wish=st.sampled_from([Wish.SERVE, Wish.UNLOADED]))
    def add(self, wish):
        name = f"m-{len(self.busy)}"
        self.entries[name] = ReplicaEntry(name=name, life=Life(), wish=wish)
        self.busy[name] = 0
        self.look()
        return name

    @rule(name=names)
    def load(self, name):
        self.entries[name].load()
        self.look()

    @rule(name=names, limit_s=st.sampled_from([None, 0.0, 5.0]))
    def unload(self, name, limit_s):
        if limit_s is None:
            self.entries[name].unload()
        else:
            self.entries[name].unload(self.now + limit_s)
        self.look()

    @rule(name=names, limit_s=st.sampled_from([0.0, 5.0]))
    def pause(self, name, limit_s):
        self.entries[name].pause(self.now + limit_s)
        self.look()

    @rule(name=names, limit_s=st.sampled_from([0.0, 5.0]))
    def remove(self, name, limit_s):
        self.entries[name].remove(self.now + limit_s)
        self.look()

    @rule(name=names, over=st.booleans())
    def drain(self, name, over):
        self.entries[name].drain(over=over)
        self.look()

    @rule(name=names)
    def rest(self, name):
        self.entries[name].rest()
        self.look()

    @rule(name=names, state=st.sampled_from(ReplicaState), again=st.booleans())
    def live(self, name, state, again):
        self.entries[name].life.state = state
        self.entries[name].life.restarts += again
        self.look()

    @rule(name=names)
    def request(self, name):
        """The gateway sends it one, if it may."""
        entry = self.entries[name]
        if name in self.processes and not entry.gets_nothing:
            assert entry.wish is Wish.SERVE
            assert name not in self.stopping, "what is ended gets no new work"
            assert not entry.drained, "a drained replica gets no new work"
            self.busy[name] += 1

    @rule(name=names)
    def answer(self, name):
        self.busy[name] = max(0, self.busy[name] - 1)
        self.look(busy=[name])

    @rule(name=names)
    def end(self, name):
        """A process ends: as it was told, or by itself."""
        if name in self.processes:
            self.ended.add(name)
            self.busy[name] = 0
            self.look()

    @rule(target=names, name=consumes(names))
    def forget(self, name):
        """Whoever removes a replica forgets it once it has ended."""
        entry = self.entries[name]
        if entry.wish is Wish.GONE and not entry.has_process:
            del self.entries[name]
            return multiple()
        return name

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def wait(self, seconds):
        self.now += seconds
        self.look()

    @invariant()
    def the_entries_know_their_processes(self):
        for name, entry in self.entries.items():
            assert entry.has_process == (name in self.processes)
            assert entry.is_ending == (name in self.stopping)

    @invariant()
    def nothing_outlives_its_wish(self):
        for name, entry in self.entries.items():
            if entry.wish.has_process:
                assert name in self.processes
            elif name in self.processes - self.stopping:
                assert self.now < entry.end_at

    @invariant()
    def a_dormant_replica_has_no_process(self):
        for name, entry in self.entries.items():
            assert not (entry.is_dormant and name in self.processes)


TestReplicaWorld = ReplicaWorld.TestCase
