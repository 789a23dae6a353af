"""What a gateway ends on the nodes while it has answers under way on it."""

import pytest
from asking import MODEL, Agents
from clusters import until
from test_ray_hive import UP, engines_left, ready

pytestmark = pytest.mark.ray


def test_what_is_ended_under_streams_cuts_none_of_them(nodes, door):
    """Scaled down, restarted, drained and taken back."""
    nodes.add("b")
    nodes.add("c")
    one = door()
    one.up(*UP, "--replicas", "2", "--cluster", nodes.address)
    with Agents(one.url, 3, tokens=60) as agents:
        agents.until_answered(3)
        one.run("scale", f"{MODEL}=1", "--wait")
        assert until(lambda: ready(one, 1), 30.0), one.run("ps").stdout
        agents.until_answered(3)
        one.run("restart", f"{MODEL}-0")
        agents.until_answered(3)
        one.run("drain", f"{MODEL}-0", "--wait")
        one.run("undrain", f"{MODEL}-0")
        agents.until_answered(3)
    assert not agents.account.cut, agents.account
    one.run("down", "--wait", "60s")
    assert until(lambda: not engines_left(), 20.0)
