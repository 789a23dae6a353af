from dataclasses import replace

import pytest

from skep.engines.base import Launch
from skep.supervisor.gateway_child import merge_model_usage, merge_status
from skep.supervisor.replica_set import ReplicaChanges, changes

ONE = Launch("m-0", "fake", "m", None, slots=2, context_tokens=100, threads=1)
TWO = replace(ONE, name="m-1")
FAR = Launch("box-1", "remote", "", None, slots=8, context_tokens=0, threads=0, url="http://10.0.0.2:8000")


def test_the_same_list_changes_nothing():
    assert changes([ONE, FAR], [FAR, ONE]) == ReplicaChanges(unchanged=("box-1", "m-0"))


def test_what_is_new_is_added_and_what_is_not_wanted_removed():
    assert changes([ONE], [TWO, FAR]) == ReplicaChanges(added=("m-1", "box-1"), removed=("m-0",))


@pytest.mark.parametrize("change", [{"slots": 4}, {"context_tokens": 200}, {"extra": ("-x",)}, {"model": "n"}])
def test_what_an_engine_is_started_with_wants_a_new_start(change):
    assert changes([ONE], [replace(ONE, **change)]).changed == ("m-0",)


@pytest.mark.parametrize("change", [{"reserve": 1}, {"soft_slots": 1}, {"health_path": "/ping"}])
def test_what_only_the_gateway_is_told_needs_no_new_start(change):
    assert changes([ONE], [replace(ONE, **change)]).adjusted == ("m-0",)


def test_slots_of_a_server_of_others_are_the_gateways_business():
    assert changes([FAR], [replace(FAR, slots=16)]).adjusted == ("box-1",)
    assert changes([FAR], [replace(FAR, url="http://10.0.0.3:8000")]).changed == ("box-1",)


def status(name="m-0", *, state="up", active=1, queued=2):
    replica = {"name": name, "slots": 4, "active": active, "releasing": 1, "state": state}
    return {
        "queued": queued,
        "in_flight": active,
        "busy": {name: active + 1},
        "queues": {"m": {"interactive": 0, "normal": queued, "batch": 0}},
        "replicas": [replica],
        "tokens": {name: 100},
        "ended": {"answered": 7},
    }


def test_a_gateway_and_the_one_it_replaces_are_told_as_one():
    """The one that takes new connections comes first, and says in which state replicas are."""
    told = merge_status([status(active=1), status(active=2, state="draining", queued=0), status("gone-0")])
    assert (told["queued"], told["in_flight"]) == (4, 4)
    assert told["busy"] == {"m-0": 5, "gone-0": 2}
    assert told["queues"] == {"m": {"interactive": 0, "normal": 4, "batch": 0}}
    assert [(row["name"], row["active"], row["releasing"], row["state"]) for row in told["replicas"]] == [
        ("m-0", 3, 2, "up"),
        ("gone-0", 1, 1, "up"),
    ]
    assert told["tokens"] == {"m-0": 200, "gone-0": 100}
    assert told["ended"] == {"answered": 21}


def test_a_model_is_idle_since_the_last_answer_of_all_gateways():
    one = {"queued": 1, "busy": 2, "idle_s": None}
    other = {"queued": 2, "busy": 0, "idle_s": 4.0}
    third = {"queued": 0, "busy": 1, "idle_s": 1.0}
    assert merge_model_usage(None, one) == one
    assert merge_model_usage(merge_model_usage(one, other), third) == {"queued": 3, "busy": 3, "idle_s": 1.0}


def test_without_a_gateway_there_is_nothing_to_tell():
    assert merge_status([]) == {}
