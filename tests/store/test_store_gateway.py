"""Requests that the gateway saw: appended, read newest first, deleted by age only."""

import threading

import pytest

from skep.errors import StoreError
from skep.store import database
from skep.store.database import GATEWAY_ROWS_AT_ONCE, is_about_a_row, open_store


def test_rows_come_newest_first_from_a_time_on_and_so_many(store, a_gateway_request):
    """By arrival; rows of the same instant by the order they were written."""
    at = {"a": 100.0, "b": 300.0, "c": 200.0, "d": 300.0}
    store.append_gateway_requests(
        a_gateway_request(name, arrived_at=when) for name, when in at.items()
    )

    def names(**question) -> str:
        return "".join(row.id for row in store.gateway_requests(**question))

    assert names() == "dbca"
    assert names(since=200.0) == "dbc"
    assert names(limit=3) == "dbc"
    assert names(since=300.0, limit=1) == "d"
    assert names(since=301.0) == ""


@pytest.mark.parametrize(
    "rows", [0, 1, GATEWAY_ROWS_AT_ONCE, GATEWAY_ROWS_AT_ONCE + 1, 3 * GATEWAY_ROWS_AT_ONCE + 7]
)
def test_batches_of_every_size_are_stored_whole(store, a_gateway_request, rows):
    """They are cut into statements of several rows each."""
    store.append_gateway_requests(
        a_gateway_request(f"a-{i}", arrived_at=float(i)) for i in range(rows)
    )
    assert [row.id for row in store.gateway_requests()] == [
        f"a-{i}" for i in reversed(range(rows))
    ]
    assert store.count_gateway_requests() == rows


def test_batch_with_one_bad_gateway_row_leaves_nothing(store, a_gateway_request):
    """All or none, over several statements too; the error tells a bad row from a bad file."""
    rows = [a_gateway_request(f"a-{i}") for i in range(GATEWAY_ROWS_AT_ONCE)]
    for bad in ({"outcome": "exploded"}, {"path": None}, {"status": [200]}):
        with pytest.raises(StoreError) as caught:
            store.append_gateway_requests([*rows, a_gateway_request(**bad)])
        assert is_about_a_row(caught.value)
    with pytest.raises(OverflowError) as too_large:
        store.append_gateway_requests([*rows, a_gateway_request(prompt_tokens=10**30)])
    assert is_about_a_row(too_large.value)
    assert store.count_gateway_requests() == 0


def test_names_with_halves_of_characters_are_stored(store, a_gateway_request):
    """Clients choose model and flow, and JSON lets them write half an emoji."""
    store.append_gateway_requests(
        [a_gateway_request(model="a\ud83d\ude00b", flow="\ud83d é"), a_gateway_request()]
    )
    whole, mended = store.gateway_requests()
    assert (mended.model, mended.flow) == ("a😀b", "� é")
    assert whole == a_gateway_request()


def test_a_writer_gets_its_turn_while_many_rows_are_deleted(path, store, a_gateway_request):
    """Deleting goes in short transactions; a gateway that appends meanwhile need not wait for all
    of them.
    """
    rows = 6 * database._DELETED_AT_ONCE
    store.append_gateway_requests([a_gateway_request(arrived_at=1.0)] * rows)
    deleted = []
    thread = threading.Thread(target=lambda: deleted.append(store.delete_gateway_requests(2.0)))
    with open_store(path) as second_store:
        thread.start()
        while second_store.count_gateway_requests() == rows:
            pass
        second_store.append_gateway_requests([a_gateway_request("late", arrived_at=3.0)])
        remaining = second_store.count_gateway_requests()
        thread.join()
    assert remaining > 1
    assert deleted == [rows]
    assert [row.id for row in store.gateway_requests()] == ["late"]


def test_the_view_speaks_in_words_people_know(store, a_gateway_request):
    """Speed is told only where tokens came one after the other; nothing is made up for a request
    without an answer.
    """
    store.append_gateway_requests(
        [
            a_gateway_request("streamed"),
            a_gateway_request("whole", streamed=False, first_byte_s=2.499),
            a_gateway_request("at-once", first_byte_s=2.5),
            a_gateway_request(
                "refused", outcome="refused", first_byte_s=None, output_tokens=None, queued_s=None
            ),
        ]
    )
    query = (
        "SELECT request_id, arrived_utc, queued_ms, ttft_ms, total_s, tok_s FROM "
        "v_gateway_requests"
    )
    assert [tuple(row) for row in store.read(query)] == [
        ("streamed", "2026-11-15 14:22:33.250", 250.0, 500.0, 2.5, 50.0),
        ("whole", "2026-11-15 14:22:33.250", 250.0, 2499.0, 2.5, None),
        ("at-once", "2026-11-15 14:22:33.250", 250.0, 2500.0, 2.5, None),
        ("refused", "2026-11-15 14:22:33.250", None, None, 2.5, None),
    ]
