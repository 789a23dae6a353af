"""One hive on a real cluster: up, spread, asked, drained, scaled, down; and what a dead node or a
dead engine costs.
"""

import json
import os
import signal

import pytest
from asking import MODEL, Agents
from clusters import chat, engines_left, ready, until, worker_of

pytestmark = pytest.mark.ray


def test_a_hive_on_three_nodes_serves_drains_scales_and_leaves_nothing_behind(nodes, up_on):
    installation = up_on("b", "c", replicas=2)
    rows = ready(installation, 2)
    assert {row["node"] for row in rows} == {"b", "c"}, "spread over the nodes"
    assert "NODE" in installation.run("ps").stdout
    assert chat(installation.url).usage.completion_tokens

    stdout = installation.run("logs", f"{MODEL}-0", "-n", "3").stdout
    assert len(stdout.splitlines()) == 3

    installation.run("drain", f"{MODEL}-0", "--wait")
    assert [installation.rows()[f"{MODEL}-{number}"]["state"] for number in range(2)] == [
        "draining",
        "ready",
    ]
    assert chat(installation.url).usage.completion_tokens
    installation.run("undrain", f"{MODEL}-0")

    installation.run("scale", f"{MODEL}=3", "--wait")
    assert ready(installation, 3)
    with Agents(installation.url, 4) as agents:
        agents.until_answered(4)
        installation.run("scale", f"{MODEL}=1", "--wait")
        assert until(lambda: ready(installation, 1))
        agents.until_answered(4)
    assert agents.account.answered == agents.account.begun, "what goes finishes its answers first"

    assert installation.down().returncode == 0
    assert until(lambda: not engines_left(), 20.0)


def test_an_engine_that_dies_is_started_anew_where_it_stands(up_on):
    installation = up_on("b")
    (before,) = ready(installation, 1)
    os.kill(before["pid"], signal.SIGKILL)
    after = until(lambda: [row for row in ready(installation, 1) if row["pid"] != before["pid"]])
    assert after
    assert after[0]["restarts"] == 1
    assert chat(installation.url).usage.completion_tokens


def test_a_node_killed_under_load_loses_no_request_and_its_replica_moves(nodes, up_on):
    """Every request ends exactly once: answered, or told so.

    What had not begun to answer is tried elsewhere.
    """
    installation = up_on("b", "c", "d", replicas=2)
    rows = ready(installation, 2)
    lost = rows[0]["node"]
    with Agents(installation.url, 6) as agents:
        agents.until_answered(6)
        nodes.kill(lost)
        agents.until_answered(6)
        moved = until(
            lambda: (
                lost not in {row["node"] for row in ready(installation, 2)}
                and ready(installation, 2)
            )
        )
        assert moved, installation.run("ps").stdout
        agents.until_answered(6)
    account = agents.account
    assert account.ended == account.begun
    assert sum(account.refused.values()) == 0, account
    assert sum(account.cut.values()) <= 2, "no more than its slots were under way there"
    document = json.loads(installation.run("ps", "--json").stdout)
    gateway = next(row for row in document if row["kind"] == "gateway")
    assert (gateway["busy"], gateway["queued"]) == (0, 0)


def test_a_reload_ends_no_engine_and_what_cannot_be_is_refused(nodes, install, tmp_path):
    nodes.add("b")
    config = tmp_path / "skep.toml"

    def write(deadline, text=""):
        serve = f'[[serve]]\nmodel = "m"\nengine = "fake"\nslots = 2\nreplicas = 2\n{text}'
        config.write_text(
            f'start_deadline = "{deadline}"\n{serve}\n[cluster]\naddress = "{nodes.address}"\n'
        )

    write("60s")
    installation = install()
    installation.up("up", "--config", str(config))
    before = {row["name"]: row for row in ready(installation, 2)}
    write("60s", "on_demand = true")
    refused = installation.run("reload", check=False)
    assert (
        refused.returncode,
        "`m` on a cluster cannot be loaded on demand" in refused.stderr,
    ) == (2, True)
    write("10ms", "reserve = 1\npinned = true")
    assert "start_deadline" in installation.run("reload", "--wait").stderr, (
        "their actors have what they were created with"
    )
    assert {row["pid"] for row in ready(installation, 2)} == {
        row["pid"] for row in before.values()
    }
    os.kill(worker_of(before["m-0"]["pid"]), signal.SIGKILL)
    assert until(
        lambda: (
            installation.rows()["m-0"]["pid"] != before["m-0"]["pid"] and ready(installation, 2)
        )
    ), installation.run("ps").stdout
    installation.run("restart", "m-1")
    assert until(
        lambda: (
            installation.rows()["m-1"]["pid"] != before["m-1"]["pid"] and ready(installation, 2)
        )
    ), installation.run("ps").stdout
