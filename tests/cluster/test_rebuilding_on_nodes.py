"""What a change of a running hive asks of its cluster: once, and not where nothing depends on the
answer.
"""

import pytest
from msgspec.structs import replace

from skep.cluster.client import RayNodes
from skep.cluster.nodes import ClusterSurvey, Node, NodeFacts
from skep.config.settings import Cluster, Serve, Settings, Upstream
from skep.errors import DoesNotFit, EngineError
from skep.paths import user_paths

SETTINGS = Settings(serve=(Serve(model="m", engine="fake", replicas=2),), cluster=Cluster("auto"))
NODE = Node(
    "id-a", "a", "10.0.0.1", False, 8, 0, 0, 8, 0, 0, facts=NodeFacts(8, 0, engines={"fake": None})
)
FOUND = ClusterSurvey("10.0.0.1:6379", "2.60.0", (NODE,))


class Asked:
    """Surveys of a cluster that is there, or is `lost`."""

    def __init__(self):
        self.count = 0
        self.lost = False
        self.nodes = RayNodes(SETTINGS.cluster, self._survey)

    def _survey(self, _address, **_how):
        self.count += 1
        if self.lost:
            raise EngineError("the head is lost")
        return FOUND


@pytest.fixture
def surveys():
    return Asked()


@pytest.fixture
def rebuilt(tmp_path, surveys):
    def launches(settings, running=None):
        return surveys.nodes.launches(
            settings, user_paths({"HOME": str(tmp_path)}), running=running
        )

    return launches


def test_a_reload_that_moves_no_replica_goes_through_while_the_head_is_lost(rebuilt, surveys):
    """A key is taken back whether or not somebody can place replicas."""
    stand = rebuilt(SETTINGS)
    surveys.lost = True
    upstream = Upstream("http://127.0.0.1:9", 4, "other")
    assert [launch.name for launch in rebuilt(replace(SETTINGS, upstream=(upstream,)), stand)] == [
        "m-0",
        "m-1",
        "other",
    ]
    assert rebuilt(SETTINGS, stand) == stand
    (serve,) = SETTINGS.serve
    reserved = rebuilt(replace(SETTINGS, serve=(replace(serve, reserve=1),)), stand)
    assert [launch.reserve for launch in reserved] == [1, 1]
    assert len(rebuilt(replace(SETTINGS, serve=(replace(serve, replicas=1),)), stand)) == 1
    assert surveys.count == 1, "nobody is asked for what can be done without"
    for change in ({"replicas": 3}, {"slots": 2}):
        with pytest.raises(EngineError, match="the head is lost"):
            rebuilt(replace(SETTINGS, serve=(replace(serve, **change),)), stand)
    with pytest.raises(EngineError, match="the head is lost"):
        rebuilt(SETTINGS)


def test_a_change_that_needs_nodes_asks_once_for_what_is_free_now(rebuilt, surveys):
    stand = rebuilt(SETTINGS)
    (serve,) = SETTINGS.serve
    with pytest.raises(DoesNotFit):
        # Of a tenth of a CPU each.
        rebuilt(replace(SETTINGS, serve=(replace(serve, replicas=1000),)), stand)
    assert len(rebuilt(replace(SETTINGS, serve=(replace(serve, replicas=80),)), stand)) == 80
    assert surveys.count == 3
