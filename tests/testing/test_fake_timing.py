"""The fake engine's times, without a clock."""

import heapq
from itertools import count

import pytest

from skep.testing.fake_engine import SlotTable
from skep.testing.fake_options import LATE_S, DecodeClock, Speed, TokenTimeCurve, parse_options


@pytest.mark.parametrize(("busy", "ms"), [(0, 10), (1, 10), (2, 12), (3, 14), (4, 16), (9, 16)])
def test_curve_is_straight_between_its_points_and_flat_outside(busy, ms):
    """A load that was not named takes its time from the two named beside it."""
    assert TokenTimeCurve.parse("4:16,1:10,2:12").at(busy) == ms


def test_the_first_token_waits_for_base_and_prefill_both_scaled():
    curve = TokenTimeCurve.parse("1:10")
    speed = Speed(curve, ttft_ms=100, prefill_tok_s=1000, scale=0.1)
    assert speed.first_token_s(400) == pytest.approx(0.05)


def test_every_token_is_slower_while_requests_wait_inside():
    curve = TokenTimeCurve.parse("1:10")
    speed = Speed(curve, overfill_slowdown=1.5)
    assert [speed.token_s(1, waiting=waiting) for waiting in (0, 3)] == pytest.approx(
        [0.010, 0.015]
    )


def test_lateness_does_not_add_up_and_a_stopped_process_does_not_catch_up():
    """A tick that comes 4 ms late each time leaves the deadlines where they were; after seconds
    they go on from now.
    """
    clock = DecodeClock(Speed(TokenTimeCurve.parse("1:10")), 5.0, prompt_tokens=0)
    for _ in range(100):
        clock.advance(clock.deadline_s + 0.004, busy=1, waiting=0)
    assert clock.deadline_s == pytest.approx(6.0)
    assert clock.advance(6.0 + LATE_S + 7, busy=1, waiting=0) == pytest.approx(6.0 + LATE_S + 7.01)


def virtual_rate(
    agents: int, *, limit: int | None = None, requests: int = 8, tokens: int = 1024
) -> float:
    """Tokens per second of two dual-3090 replicas behind least-connections, in virtual time."""
    options = parse_options(["--preset", "dual-3090"])
    tables = [SlotTable[int](options.slots) for _ in range(2)]
    place: dict[int, SlotTable[int]] = {}
    clocks: dict[int, DecodeClock] = {}
    remaining = dict.fromkeys(range(agents * requests), tokens)
    due: list[tuple[float, int]] = []
    jobs = count()
    now = 0.0

    def start(job: int) -> None:
        clocks[job] = DecodeClock(options.speed, now, tokens)
        heapq.heappush(due, (clocks[job].deadline_s, job))

    def send() -> None:
        job = next(jobs)
        if job in remaining:
            place[job] = min(tables, key=lambda table: table.running + table.waiting)
            if place[job].enter(job):
                start(job)

    for _ in range(min(agents, limit or agents)):
        send()
    while due:
        now, job = heapq.heappop(due)
        remaining[job] -= 1
        if remaining[job]:
            deadline_s = clocks[job].advance(
                now, busy=place[job].running, waiting=place[job].waiting
            )
            heapq.heappush(due, (deadline_s, job))
        else:
            if (heir := place[job].leave(job)) is not None:
                start(heir)
            send()
    return len(remaining) * tokens / now


@pytest.mark.parametrize(("agents", "published"), [(1, 82), (2, 154), (4, 225), (8, 167)])
def test_dual_3090_preset_shows_the_published_speed(agents, published):
    """Two replicas behind plain least-connections rise to four agents and fall at eight."""
    assert virtual_rate(agents) == pytest.approx(published, rel=0.06)


def test_dual_3090_preset_does_not_fall_when_it_is_never_overfilled():
    """Eight agents held to four at a time by the one in front."""
    assert virtual_rate(8, limit=4) == pytest.approx(225, rel=0.02)
