"""The rules of admission as one would first write them: every replica, every flow and every deadline is looked at.

Slow, and meant to be read. `test_quick_deciding` holds the real ones to it, for pools where both must say the same.
"""

from skep.config.keys import Priority
from skep.gateway.admission import Admission
from skep.gateway.queue import ModelQueue
from skep.gateway.replica_table import ModelPool, clearly_busier, load, rendezvous

INTERACTIVE = Priority.INTERACTIVE


class PlainQueue(ModelQueue):
    def __init__(self, aging_s, pool):
        super().__init__(aging_s)
        self.pool = pool

    def overdue(self, now):
        return [entry for entry in self if entry.deadline <= now]

    def candidates(self):
        heads = []
        for priority in Priority:
            flows = {}
            for entry in self.in_order(priority):
                flows.setdefault(entry.arrival.flow, entry)
            if flows:
                oldest = min(flows.values(), key=lambda entry: entry.arrived_at)
                heads.append((oldest.arrived_at + priority * self.aging_s, priority, oldest, flows))
        heads.sort(key=lambda head: head[:2])
        for place, (_, priority, oldest, flows) in enumerate(heads):
            aged = any(other[1] < priority for other in heads[place:])
            yield oldest if aged else flows[min(flows, key=lambda name: self.turn(priority, name))]

    def in_order(self, priority):
        """Flow by flow, each from its head."""
        return [entry for flow in self._classes[priority].values() for entry in flow.entries.values()]

    def turn(self, priority, name):
        leases = [lease for replica in self.pool.replicas for lease in replica.leases.values()]
        active = [lease for lease in leases if lease.releasing_until is None and lease.entry.arrival.flow == name]
        return len(active), self._classes[priority][name].turn[1]


class PlainPool(ModelPool):
    def __init__(self, aging_s):
        super().__init__(aging_s)
        self.queue = PlainQueue(aging_s, self)

    def least_busy(self, now):
        return min(self.alive(now), key=lambda replica: replica.busy / replica.slots, default=None)

    def others(self, replica, now):
        return any(other is not replica for other in self.alive(now))

    def expected_wait_s(self, now):
        slots = sum(replica.slots for replica in self.alive(now))
        return max(1.0, (len(self.queue) + 1) / ((slots or 1) / (self._service_s or 1.0)))

    def has_room(self, now):
        return any(replica.busy < replica.slots for replica in self.alive(now))

    def choose(self, entry, homes, now):
        alive = self.alive(now)
        alone = self.queue.only_batch()
        free = [replica for replica in alive if allows(replica, entry.arrival.priority, alone)]
        if entry.avoid is not None:
            others = [replica for replica in free if replica.name != entry.avoid]
            if not others and now < entry.avoid_until and any(replica.name != entry.avoid for replica in alive):
                return None
            free = others or free
        if not free:
            return None
        least = min(free, key=lambda replica: (*load(replica), replica.busy - replica.slots))
        conversation = entry.arrival.conversation
        if conversation is None or len(alive) == 1:
            return least
        name = homes.of(conversation)
        if any(replica.name == name for replica in alive):
            home = next((replica for replica in free if replica.name == name), None)
            chosen = least if home is None or clearly_busier(home, least.busy / least.slots) else home
        else:
            winner = rendezvous(conversation, alive)
            chosen = winner if winner in free and load(winner) == load(least) else least
        homes.remember(conversation, chosen.name)
        return chosen


def allows(replica, priority, alone):
    """Whether a request of this class may take one of its slots; `alone`: nothing but batch waits."""
    one, busy = replica.spec, replica.busy
    active = [lease.entry.arrival.priority for lease in replica.leases.values() if lease.releasing_until is None]
    if busy >= one.slots:
        return False
    if one.reserve and priority is not INTERACTIVE and busy - active.count(INTERACTIVE) >= one.slots - one.reserve:
        return False
    if one.soft_slots is None:
        return True
    quick = active.count(INTERACTIVE) + active.count(Priority.NORMAL)
    if priority is not Priority.BATCH:
        return quick < one.soft_slots
    return busy < one.soft_slots or (quick == 0 and alone)


class PlainAdmission(Admission):
    pool = PlainPool
