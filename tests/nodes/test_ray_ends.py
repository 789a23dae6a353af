"""What the door that placed the replicas ends, while another door has answers under way on it."""

import pytest
from asking import MODEL, Agents
from clusters import until
from test_ray_hive import UP, engines_left, ready

pytestmark = pytest.mark.ray


def test_what_the_owner_ends_costs_a_guest_no_answer(nodes, door):
    """Scaled down, restarted, drained and at last stopped under a guest's streams: none of them is cut."""
    nodes.add("b")
    nodes.add("c")
    owner, guest = door(), door()
    owner.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    guest.up("gateway", "--cluster", nodes.address)
    assert until(lambda: ready(guest, 2), 30.0), guest.run("ps").stdout
    with Agents(guest.url, 3, tokens=60) as agents:
        agents.until_answered(3)
        owner.run("scale", f"{MODEL}=1", "--wait")
        assert until(lambda: ready(guest, 1), 30.0), guest.run("ps").stdout
        agents.until_answered(3)
        assert not agents.account.cut, agents.account
        owner.run("restart", f"{MODEL}-0")
        agents.until_answered(3)
        assert not agents.account.cut, agents.account
        owner.run("drain", f"{MODEL}-0", "--wait")
        told = guest.run("undrain", f"{MODEL}-0", check=False)
        assert (told.returncode, "is drained at another door" in told.stderr) == (1, True), told.stderr
        owner.run("undrain", f"{MODEL}-0")
        agents.until_answered(3)
        assert not agents.account.cut, agents.account
        owner.run("down", "--wait", "60s")
    assert not agents.account.cut, agents.account
    assert until(lambda: not engines_left(), 20.0)
