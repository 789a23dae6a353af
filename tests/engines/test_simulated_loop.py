"""The pure parts of the simulated engine: the passes in virtual time, the words,
the plan as JSON.
"""

import heapq
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_process import MTP, small_prospect

from skep.engines.base import Launch
from skep.engines.simulated import Simulated
from skep.engines.simulated_requests import natural_tokens, seed_of
from skep.engines.simulated_server import SimulatedLoop, SimulatedMetrics
from skep.errors import UserError
from skep.planner.caching import CachingReplica
from skep.planner.setup import PlannedLoad


class VirtualLoop:
    """Rings each timer `late_s` after its moment."""

    def __init__(self, late_s=0.0):
        self.late_s = late_s
        self._now = 0.0
        self._timers = []
        self._count = 0

    def time(self):
        return self._now

    def call_at(self, when, callback, *args):
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, callback, args))
        return self._count

    def run(self):
        while self._timers:
            when, _, callback, args = heapq.heappop(self._timers)
            self._now = max(self._now, when + self.late_s)
            callback(*args)


def clockwork_on(prospect, loop):
    replica = CachingReplica(
        prospect.step, prospect.slots, prospect.pool_tokens, prospect.chunk_tokens
    )
    return SimulatedLoop(replica, SimulatedMetrics(), loop)


def closed_loop(prospect, agents, tasks, prompt, output, late_s=0.0):
    """Tokens, and when the last one came: each agent sends its next task when its last is
    answered.
    """
    loop = VirtualLoop(late_s)
    clockwork = clockwork_on(prospect, loop)
    remaining = [tasks]
    tokens = [0]

    def gain(count):
        tokens[0] += count

    def send():
        if remaining[0]:
            remaining[0] -= 1
            clockwork.submit(prompt, output, gain, send)

    for _ in range(agents):
        send()
    loop.run()
    return tokens[0], loop.time()


@pytest.mark.parametrize("spec", [None, MTP], ids=str)
@pytest.mark.parametrize("agents", [1, 4, 12])
def test_in_virtual_time_it_is_the_forecast(agents, spec):
    """12 agents on 4 slots: the rest waits, in both."""
    prospect = small_prospect(spec=spec)
    tokens, wall_s = closed_loop(prospect, agents, 3 * agents, 512, 128)
    from skep.planner.predict import simulate_load

    load = PlannedLoad(agents, 512, 128, tasks=3 * agents)
    foretold = simulate_load(
        prospect.step,
        load,
        slots=prospect.slots,
        pool_tokens=prospect.pool_tokens,
        chunk_tokens=prospect.chunk_tokens,
    )
    assert tokens == 3 * agents * 128
    assert tokens / wall_s == pytest.approx(foretold.effective_tok_s, rel=0.02)


def test_timers_that_ring_late_do_not_add_up():
    prospect = small_prospect()
    _, exact_s = closed_loop(prospect, 1, 1, 512, 1000)
    _, late_s = closed_loop(prospect, 1, 1, 512, 1000, late_s=0.001)
    assert late_s - exact_s < 0.0011  # not a thousand times that


def test_time_that_was_lost_in_sleep_is_not_made_up():
    prospect = small_prospect()
    loop = VirtualLoop()
    clockwork = clockwork_on(prospect, loop)
    clockwork.submit(10, 50, lambda _: None, lambda: None)
    loop.late_s = 60.0
    loop.run()
    assert clockwork.metrics.behind_s > 59


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.integers(1, 60), st.none() | st.floats(0, 0.4)),
        min_size=1,
        max_size=12,
    )
)
def test_whoever_stays_gets_all_tokens_and_whoever_leaves_frees_everything(asks):
    """(prompt, output, when the client leaves)."""
    loop = VirtualLoop()
    clockwork = clockwork_on(small_prospect(slots=3), loop)
    got = [0] * len(asks)
    ended = set()
    for number, (prompt, output, leaves_s) in enumerate(asks):

        def gain(count, number=number):
            assert number not in ended
            got[number] += count

        work = clockwork.submit(prompt, output, gain, lambda number=number: ended.add(number))
        if leaves_s is not None:
            loop.call_at(leaves_s, clockwork.cancel, work)
    loop.run()
    for number, (_, output, leaves_s) in enumerate(asks):
        assert got[number] == output if number in ended else leaves_s is not None
        assert got[number] <= output
    assert (clockwork.replica.running, len(clockwork.replica.waiting)) == (0, 0)
    assert clockwork.replica.kv_tokens == pytest.approx(0, abs=1e-3)
    assert clockwork.metrics.output_tokens == sum(got)


def test_answers_that_nothing_limits_are_of_plausible_length():
    drawn = [natural_tokens(seed_of(f"prompt {number}")) for number in range(2000)]
    assert min(drawn) >= 40
    assert 250 < fmean(drawn) < 310
    assert max(drawn) < 3000


def test_a_launch_without_a_plan_is_refused_before_anything_starts():
    launch = Launch("m-0", "simulated", "m", None, slots=1, context_tokens=64, threads=1)
    with pytest.raises(UserError, match="has no plan for `m`"):
        Simulated().check(launch)
