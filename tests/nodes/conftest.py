"""Real Ray clusters on this machine: several raylets, each a node.

`make test-ray` runs what is here.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from clusters import OWN_FOLDERS, UP, Installation, Nodes

from skep.cluster.ray_processes import _WATCHFUL

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session")
def node_env(tmp_path_factory):
    """Folders of the nodes' own, but for the weights, which are pulled already."""
    home = tmp_path_factory.mktemp("n")
    folders = {name: str(home / name.lower()) for name in OWN_FOLDERS}
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    before = {name: os.environ.get(name) for name in folders}
    before |= {name: os.environ.get(name) for name in _WATCHFUL}
    os.environ.update(folders, **_WATCHFUL, RAY_USAGE_STATS_ENABLED="0")
    yield {**os.environ, "XDG_CACHE_HOME": cache}
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def nodes(node_env):
    nodes = Nodes(node_env)
    yield nodes
    nodes.close()


@pytest.fixture
def install(tmp_path_factory, node_env):
    """Make installations of skep; all hives are ended with the test."""
    installations = []

    def make():
        installations.append(Installation(tmp_path_factory.mktemp("d"), node_env))
        return installations[-1]

    yield make
    for installation in installations:
        installation.down()


@pytest.fixture
def up_on(nodes, install):
    """Add these nodes, and start the embedded engine on the cluster."""

    def start(*names, replicas=1):
        nodes.add(*names)
        installation = install()
        installation.up(*UP, "--replicas", str(replicas), "--cluster", nodes.address)
        return installation

    return start
