"""Verdicts and the items they are about: appended with their run, read back as they were."""

from __future__ import annotations

import pytest

from skep.errors import StoreError
from skep.store.verdicts import Check, Verdict, VerdictOutcome
from skep.workload.items import Checker, Item

ITEM = Item(
    id="drills/add/7",
    messages=({"role": "user", "content": "7 + 5 = ? ½ \ud83d"},),
    checker=Checker("number", {"answer": 12}),
    max_tokens=16,
    keywords=("12",),
    family="add",
    difficulty=1,
)
VERDICT = Verdict(
    level=4,
    repeat=1,
    index=7,
    item=ITEM.id,
    outcome=VerdictOutcome.WRONG,
    detail="11 instead of 12",
    checks=(Check("the last number", passed=False, detail="11"),),
    keywords=True,
    keywords_missing=("twelve",),
    checker="number/1",
    sandbox=None,
    seconds=0.25,
)


def test_verdict_and_item_read_back_as_they_were(store, begin):
    """What was asked and what became of it need no other file."""
    run_id = begin(store, kind="quality")
    store.append_items(run_id, [ITEM])
    store.append_verdicts(run_id, [VERDICT])
    assert store.items(run_id) == [ITEM]
    assert store.verdicts(run_id) == [VERDICT]


def test_a_request_has_one_verdict_an_ended_run_takes_none_a_deleted_one_takes_them_along(store, begin):
    """A second opinion is a replay, not a row; what a finished run says is final."""
    run_id = begin(store)
    store.append_items(run_id, [ITEM])
    store.append_verdicts(run_id, [VERDICT])
    with pytest.raises(StoreError, match="does not take this row"):
        store.append_verdicts(run_id, [VERDICT])
    store.end_run(run_id, 1_794_752_600.0, "done")
    with pytest.raises(StoreError, match="has ended"):
        store.append_verdicts(run_id, [VERDICT])
    assert store.delete_runs([run_id]) == 1
    assert (store.items(run_id), store.verdicts(run_id)) == ([], [])
