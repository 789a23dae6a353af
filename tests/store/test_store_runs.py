"""Runs and their rows, written and read back through one store."""

import threading

import pytest

from skep.errors import StoreError, UserError
from skep.store.records import ClientSample, RunState


def test_a_run_reads_back_as_it_was_begun_with_an_id_of_its_own_that_tells_when(store, begin):
    """Everything given to `begin_run` is read back, and the run is running."""
    run = store.run(begin(store, config={"tasks": 8, "names": ["é", None]}, simulated=True))
    assert (run.kind, run.model, run.created_at) == ("sweep", "smol", 1_794_752_553.25)
    assert (run.url, run.fingerprint) == ("http://127.0.0.1:8000/v1", "f00d")
    assert (run.config, run.engine) == ({"tasks": 8, "names": ["é", None]}, {"version": "b1"})
    assert (run.host, run.skep_version, run.requests) == ({"cpu_cores": 2}, "0.1.0", 0)
    assert run.simulated is True
    assert (run.state, run.ended_at, run.error) == (RunState.RUNNING, None, None)
    # Ids sort by time: the second in UTC, then chance. A suffix already taken is drawn again, but
    # not for ever.
    draws = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    first, second = (begin(store, suffix=lambda: next(draws)) for _ in range(2))
    assert (first, second) == ("20261115-142233-aaaaaa", "20261115-142233-bbbbbb")
    with pytest.raises(StoreError, match="no free id"):
        begin(store, suffix=lambda: "aaaaaa")


def test_requests_are_read_in_the_order_of_the_sweep_and_stored_in_whole_batches(
    store, begin, a_request
):
    """The order is level, repeat, index, however they were stored; and the run counts them."""
    run_id = begin(store)
    places = [(2, 0, 1), (1, 1, 0), (2, 0, 0), (1, 0, 0)]
    store.append_requests(run_id, (a_request(i, level=level, repeat=r) for level, r, i in places))
    assert [(row.level, row.repeat, row.index) for row in store.requests(run_id)] == sorted(places)
    assert store.run(run_id).requests == 4
    # A batch is stored whole or not at all, and the store goes on.
    run_id = begin(store)
    store.append_requests(run_id, [a_request(0)])
    with pytest.raises(StoreError, match="UNIQUE"):
        store.append_requests(run_id, [a_request(1), a_request(0)])
    with pytest.raises(StoreError, match="run `nowhere` does not take this row"):
        store.append_requests("nowhere", [a_request()])
    store.append_requests(run_id, [])
    store.append_requests(run_id, [a_request(2)])
    assert [row.index for row in store.requests(run_id)] == [0, 2]


@pytest.mark.parametrize(
    ("outcome", "error", "state"),
    [("done", None, RunState.DONE), ("failed", "no answer", RunState.FAILED)],
)
def test_ended_run_says_how_and_takes_no_more(store, begin, a_request, outcome, error, state):
    """The end is a row of its own, and final: no request, no sample, no second end."""
    run_id = begin(store)
    store.end_run(run_id, 1_794_752_600.5, outcome, error)
    for late in (
        lambda: store.append_requests(run_id, [a_request()]),
        lambda: store.append_client_sample(
            run_id, ClientSample(1, 0, None, None, None, client_limited=False)
        ),
        lambda: store.end_run(run_id, 2.0, "failed", "late"),
    ):
        with pytest.raises(StoreError, match="the run has ended"):
            late()
    run = store.run(run_id)
    assert (run.state, run.ended_at, run.error) == (state, 1_794_752_600.5, error)


def test_runs_are_listed_newest_first(store, begin):
    """They are ordered by time; runs of the same instant by the order in which they began."""
    ids = [begin(store, created_at=at) for at in (100.0, 300.0, 200.0, 300.0)]
    assert [run.id for run in store.runs()] == [ids[3], ids[1], ids[2], ids[0]]
    assert [run.id for run in store.runs(limit=2)] == [ids[3], ids[1]]


def test_deleting_a_run_takes_its_rows_along_but_none_that_is_at_work_goes(
    store, begin, a_request
):
    """Whole runs are deleted, others stay, and unknown ids do not count; a run that is being
    written stays.
    """
    deleted, done, at_work = (begin(store) for _ in range(3))
    for run_id in (deleted, done):
        store.append_requests(run_id, [a_request()])
        store.append_client_sample(
            run_id, ClientSample(1, 0, None, None, None, client_limited=False)
        )
        store.end_run(run_id, 1.0, "done")
    with pytest.raises(UserError, match=at_work):
        store.delete_runs([deleted, at_work])
    assert len(store.runs()) == 3
    assert store.delete_runs([deleted, deleted, "unknown"]) == 1
    assert [run.id for run in store.runs()] == [at_work, done]
    assert (store.requests(deleted), store.client_samples(deleted)) == ([], [])
    assert len(store.requests(done)) == 1
    with pytest.raises(Exception, match="rows of runs are final"):
        store._connection.execute("DELETE FROM runs")


def test_store_may_be_used_from_several_threads(store, begin, a_request):
    """Callers hand blocking calls to threads; their transactions do not mix."""
    run_id = begin(store)

    def append(level: int) -> None:
        for index in range(20):
            store.append_requests(run_id, [a_request(index, level=level)])

    threads = [threading.Thread(target=append, args=(level,)) for level in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.run(run_id).requests == 80


def test_views_speak_in_words_people_know(store, begin, a_request):
    """Another tool that opens the file shows times, speeds and outcomes in plain words."""
    run_id = begin(store)
    row = a_request(
        3, level=4, first_token_s=1.0, last_token_s=2.0, output_tokens=50, arrivals_s=(1.0, 2.0)
    )
    store.append_requests(run_id, [row, a_request(4, level=4, error_kind="timeout")])
    store.end_run(run_id, 1_794_752_563.25, "done")
    query = (
        "SELECT outcome, started_utc, duration_s, requests, failed_requests, output_tokens FROM "
        "v_runs"
    )
    assert tuple(store.read(query)[0]) == ("done", "2026-11-15 14:22:33", 10.0, 2, 1, 50)
    query = (
        "SELECT concurrency, task, ok, total_s, ttft_ms, task_tok_s, chunks FROM v_requests "
        "ORDER BY task"
    )
    assert [tuple(row) for row in store.read(query)] == [
        (4, 3, 1, 2.0, 500.0, 50.0, 2),
        (4, 4, 0, 2.0, None, None, 0),
    ]
