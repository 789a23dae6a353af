"""Who runs, who waits, who is turned away."""

from __future__ import annotations

from skep.testing.fake_server import SlotEntry, SlotTable


def test_requests_beyond_the_slots_wait_in_order():
    """The first to wait is the first to start."""
    table = SlotTable[str](1)
    assert [table.enter(job) for job in "abc"] == [SlotEntry.RUNS, SlotEntry.WAITS, SlotEntry.WAITS]
    assert [table.leave("a"), table.leave("b"), table.leave("c")] == ["b", "c", None]


def test_full_queue_turns_away():
    """A job that was turned away is not inside."""
    table = SlotTable[str](1, max_waiting=1)
    assert [table.enter(job) for job in "abc"] == [SlotEntry.RUNS, SlotEntry.WAITS, SlotEntry.TURNED_AWAY]
    assert (table.running, table.waiting) == (1, 1)


def test_leaving_twice_changes_nothing():
    """A hang-up and an end may both report the same job."""
    table = SlotTable[str](2)
    table.enter("a")
    table.leave("a")
    assert table.leave("a") is None
    assert table.running == 0


def test_job_that_leaves_the_queue_starts_nobody():
    """No slot became free."""
    table = SlotTable[str](1)
    table.enter("a")
    table.enter("b")
    assert table.leave("b") is None
    assert repr(table) == "<SlotTable 1/1 running, 0 waiting>"


def test_table_remembers_the_fullest_moment():
    """What a limiter in front is held against."""
    table = SlotTable[str](2)
    for job in "abc":
        table.enter(job)
    for job in "abc":
        table.leave(job)
    assert (table.max_running, table.max_inside) == (2, 3)
