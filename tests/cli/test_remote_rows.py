"""Replicas on other machines, as `skep ps` and `skep logs` show them."""

import os
from types import SimpleNamespace

import pytest
from hive_client import FakeHive
from in_process import call

from skep.cli.serve import show_log
from skep.errors import EngineError, UserError
from skep.report.columns import print_records
from skep.report.hive_text import HIVE_COLUMNS
from skep.supervisor.main import StartReporter

ROW = {
    "name": "m-0",
    "kind": "replica",
    "state": "ready",
    "pid": 7,
    "url": "http://10.0.0.2:9",
    "slots": 8,
    "busy": 0,
}


def test_nodes_are_a_column_where_there_are_any(capsys):
    remote_row = {**ROW, "restarts": 0, "why": None, "node": "node-7"}
    print_records(
        HIVE_COLUMNS, [remote_row, {**ROW, "name": "gateway", "restarts": 0, "why": None}]
    )
    title, replica, gateway = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["NAME", "NODE", "STATE"]
    assert replica.split()[:3] == ["m-0", "node-7", "ready"]
    assert gateway.split()[:3] == ["gateway", "–", "ready"]
    print_records(HIVE_COLUMNS, [{**remote_row, "node": None}])
    assert "NODE" not in capsys.readouterr().out


@pytest.fixture(autouse=True)
def _logs(paths):
    paths.logs.mkdir(parents=True)
    (paths.logs / "m-0.log").write_text("left by another hive\n")
    (paths.logs / "gateway.log").write_text("of the gateway\n")


def test_the_log_of_a_replica_elsewhere_is_asked_for(paths, capfd):
    def answer(message):
        if message["name"] == "m-1":
            raise EngineError("its node does not answer")
        if message["name"] == "m-0":
            text = {"text": f"{message['lines']} lines\n", "offset": 9}
        else:
            text = {}
        return {"ok": True, **text}

    with FakeHive(paths, answer):
        show_log(paths, "m-0", 3, follow=False)
        show_log(paths, "gateway", 3, follow=False)
        with pytest.raises(EngineError, match="its node does not answer"):
            show_log(paths, "m-1", 3, follow=False)
        with pytest.raises(UserError, match="there is no log of `m-2`"):
            show_log(paths, "m-2", 3, follow=False)
    show_log(paths, "m-0", 3, follow=False)
    assert capfd.readouterr().out == "3 lines\nof the gateway\nleft by another hive\n"


def test_a_log_elsewhere_is_followed_in_parts_through_a_move(paths, capfd, monkeypatch):
    monkeypatch.setattr("skep.supervisor.log_reader.POLL_ELSEWHERE_S", 0.01)
    requests = []

    def answer(message):
        requests.append(message["offset"])
        if len(requests) == 2:
            raise EngineError("its node does not answer")
        if len(requests) < 4:
            return {"ok": True, "text": f"{len(requests)}\n", "offset": 2 * len(requests)}
        return {"ok": True}

    with FakeHive(paths, answer):
        show_log(paths, "m-0", 3, follow=True)
    assert requests == [None, 2, 2, 6]
    assert capfd.readouterr().out == "1\n3\n"
    requests = []
    text = "1\n2\n3\n"

    def answer(message):
        requests.append(message["offset"])
        at = requests[-1] or 0
        if len(requests) == 3:
            raise EngineError("its node does not answer")
        part = {"text": (text + text)[at : at + 2], "offset": at + 2, "size": 6 if at < 6 else 12}
        return {"ok": True, **(part if at < 12 else {})}

    with FakeHive(paths, answer):
        with pytest.raises(EngineError, match="its node does not answer"):
            show_log(paths, "m-1", 3, follow=False)
        assert (requests, capfd.readouterr().out) == ([None, 2, 4], "1\n2\n")
        show_log(paths, "m-0", 3, follow=True)
    assert requests[3:] == [None, 2, 4, 6, 8, 10, 12]
    assert capfd.readouterr().out == text + text


def test_what_could_not_be_ended_is_told_by_down_the_terminal_and_the_log(paths, capsys):
    """skep itself is down: that the cluster was not to be reached is a warning."""
    warning = "the cluster cannot be reached; what stands on its nodes ends within 60 s"

    def answer(_message):
        return {"ok": True, "pid": 2**30, "drain_s": 0.0, "stop_s": 5.0, "more": True}

    with FakeHive(paths, answer, lambda: {"left_behind": [warning]}):
        done = call("down", check=0)
    assert done.out == ""
    assert done.err.splitlines() == [f"warning: {warning}", "skep is down"]
    supervisor = SimpleNamespace(phase="stopping", last_rows=[], left_behind=(LEFT,))
    read_fd, write_fd = os.pipe()
    reporter = StartReporter(write_fd)
    reporter.changed(supervisor)
    reporter.changed(supervisor)
    reporter.close()
    with os.fdopen(read_fd) as done:
        assert done.read().count(LEFT) == 1
    assert capsys.readouterr().err.splitlines() == [f"warning: {LEFT}"]


LEFT = "something is left"
