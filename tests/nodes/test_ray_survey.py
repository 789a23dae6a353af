"""A real cluster as a survey tells it, what can be placed on it, and in which words it refuses."""

import json
import os
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from skep import __version__
from skep.catalog.presets import EngineOptions
from skep.cluster.discover import survey
from skep.cluster.placement import place_launches
from skep.config.settings import Cluster, Serve, Settings
from skep.errors import DoesNotFit, EngineError, UserError
from skep.paths import user_paths
from skep.units import GIB

pytestmark = pytest.mark.ray


def place(cluster, env, *serves):
    return place_launches(
        Settings(serve=serves, cluster=Cluster(cluster.address)), user_paths(env), lambda: cluster
    )


@pytest.fixture
def two_kinds(nodes):
    """The survey of a head, a node without GPUs and one with two."""
    nodes.add("plain", memory=4 * GIB)
    nodes.add("cards", num_cpus=4, num_gpus=2, memory=8 * GIB)
    return survey(nodes.address)


def test_two_kinds_of_nodes_are_named_with_what_is_free(two_kinds):
    assert [(node.name, node.head, node.kind) for node in two_kinds.nodes] == [
        ("head", True, "CPU only"),
        ("cards", False, "2 GPUs"),
        ("plain", False, "CPU only"),
    ]
    head, cards, plain = two_kinds.nodes
    assert two_kinds.here == head.id
    assert cards.describe() == "cards has 2 of 2 GPUs, 4 of 4 CPUs, 8.0 GiB of 8.0 GiB free"
    assert (plain.facts.skep, plain.why) == (__version__, None)
    assert "embedded" in plain.facts.engines


def test_replicas_are_placed_on_nodes_that_have_their_engine_and_room(
    two_kinds, node_env, tmp_path
):
    (small,) = place(two_kinds, node_env, Serve(threads=1))
    assert small.place.source == "smollm2-135m"
    assert small.place.memory_bytes > 100_000_000, "weights and cache, from the file's own header"
    assert place(two_kinds, node_env, Serve(replicas=2))[0].threads >= 1

    vllm = Serve(
        model="org/model", engine="vllm", binary=str(tmp_path), options=EngineOptions(tp=2)
    )
    with pytest.raises(EngineError, match="plain has no vllm installed"):
        place(two_kinds, node_env, replace(vllm, binary=None))
    with pytest.raises(
        DoesNotFit, match=r"2 replicas .* room for 1: each needs 2 GPUs, .*cards has 2 of 2 GPUs"
    ):
        place(two_kinds, node_env, replace(vllm, replicas=2))


def test_a_node_with_another_skep_and_one_without_any_are_named_and_not_used(
    nodes, node_env, tmp_path
):
    """What the workers of a node import is made another by a folder that comes first on their
    path.
    """
    absent = "raise ModuleNotFoundError(\"No module named 'skep'\")"
    for name, text in (("older", '__version__ = "0.0.1"'), ("without", absent)):
        (tmp_path / name / "skep").mkdir(parents=True)
        (tmp_path / name / "skep" / "__init__.py").write_text(text)
        nodes.add(name, env_vars={"PYTHONPATH": str(tmp_path / name)})
    cluster = survey(nodes.address)
    assert {node.name: node.why for node in cluster.nodes} == {
        "head": None,
        "older": f"runs another version than skep {__version__}",
        "without": "has no skep in its Ray environment",
    }
    with pytest.raises(
        DoesNotFit, match=r"head has no GPU, 0 of 0 CPUs.*; older runs another v.*; without has no"
    ):
        place(cluster, node_env, Serve(model="m", engine="fake"))


VERSIONS = """
import json, sys, ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
ray.init(address=sys.argv[1], log_to_driver=False)
told = json.loads(_internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster"))
told |= json.loads(sys.argv[2])
_internal_kv_put(b"CLUSTER_METADATA", json.dumps(told).encode(), namespace=b"cluster")
"""


def started_with(nodes, **versions):
    """The head tells newcomers what it was started with;
    here it is made to tell something else.
    """
    words = [sys.executable, "-c", VERSIONS, nodes.address, json.dumps(versions)]
    env = {**os.environ, "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
    subprocess.run(words, check=True, capture_output=True, timeout=60, env=env)


def test_a_python_of_another_minor_version_is_said_with_both(nodes):
    """One that differs in its last digit does as well: home machines seldom have the same."""
    major, minor, patch = sys.version_info[:3]
    started_with(nodes, python_version=f"{major}.{minor}.{patch + 1}")
    assert [node.name for node in survey(nodes.address).nodes] == ["head"]
    started_with(nodes, python_version=f"{major}.{minor + 1}.0")
    with pytest.raises(
        UserError, match=rf"on Python {major}\.{minor + 1}\.0, this .* Python {major}\.{minor}\."
    ):
        survey(nodes.address)


def test_a_machine_that_is_no_node_and_an_address_without_a_cluster_are_told_apart(nodes):
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"there is no cluster at 127\.0\.0\.1:1"):
        survey("127.0.0.1:1")
    assert time.monotonic() - began < 1
    nodes.kill_raylet()
    with pytest.raises(EngineError, match="this machine is not a node of the cluster"):
        survey(nodes.address)


def test_a_simulated_model_can_be_tried_on_a_cluster(nodes, install):
    nodes.add("b")
    installation = install()
    installation.up(
        "up", "qwen3-8b", "--simulate", "--gpu", "2x rtx-3090", "--cluster", nodes.address
    )
    assert {row["node"] for row in installation.rows().values() if row["kind"] == "replica"} == {
        "b"
    }, "the head lends nothing"
