"""A cluster of unlike nodes, real but for its cards:
two of 24 GB, one of 48 GB, and none at all.
"""

import json

import pytest
from cards import Cards, variable_of
from clusters import until

from skep.cluster.discover import survey
from skep.units import GIB

pytestmark = pytest.mark.ray
TWIN = "NVIDIA GeForce RTX 3090"
BIG = "NVIDIA RTX 6000 Ada Generation"


QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36,
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def mixed(nodes, tmp_path):
    """`twin` has 2 x 24 GB, `big` 1 x 48 GB, `plain` none; the head takes nothing."""
    twin = Cards(tmp_path / "twin", TWIN, 24576, 2)
    big = Cards(tmp_path / "big", BIG, 49140, 1, "8.9")
    nodes.add("twin", num_cpus=4, num_gpus=2, memory=16 * GIB, env_vars=twin.env)
    nodes.add("big", num_cpus=2, num_gpus=1, memory=16 * GIB, env_vars=big.env)
    nodes.add("plain", num_cpus=2, memory=16 * GIB)
    return twin, big


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    return folder


def config_of(tmp_path, address, weights, *, tp=1, **keys):
    expected = {
        "model": "m",
        "engine": "sglang",
        "checkpoint": str(weights),
        "slots": 2,
        "context": 512,
        **keys,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in expected.items()]
    path = tmp_path / "skep.toml"
    path.write_text(
        "\n".join(
            [
                "[[serve]]",
                *lines,
                f"options = {{ tp = {tp} }}",
                "[cluster]",
                f'address = "{address}"',
                "",
            ]
        )
    )
    return str(path)


def replicas(installation):
    return {name: row for name, row in installation.rows().items() if row["kind"] == "replica"}


def cards_seen(rows):
    return sorted(
        (row["node"], variable_of(row["pid"], "CUDA_VISIBLE_DEVICES")) for row in rows.values()
    )


def placed(address):
    """What Ray has given to whom: the resources of each place, and its node."""
    import ray
    from ray.util import placement_group_table

    from skep.cluster.connect import join

    join(address)
    try:
        names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
        rows = [row for row in placement_group_table().values() if row["state"] == "CREATED"]
        return {
            row["name"]: (names[row["bundles_to_node_id"][0]], row["bundles"], row["strategy"])
            for row in rows
        }
    finally:
        ray.shutdown()


def test_a_group_of_two_cards_stands_on_the_node_that_has_both_and_sees_both(
    nodes, mixed, install, weights, tmp_path
):
    installation = install()
    installation.up("up", "--config", config_of(tmp_path, nodes.address, weights, tp=2))
    rows = replicas(installation)
    assert cards_seen(rows) == [("twin", "0,1")]
    (pid,) = (row["pid"] for row in rows.values())
    assert variable_of(pid, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    assert placed(nodes.address) == {
        "skep/post/m-0": (
            "twin",
            {0: {"CPU": 2.0, "GPU": 2.0, "memory": 4.0 * GIB}},
            "STRICT_PACK",
        )
    }
    assert [launch.name for launch in survey(nodes.address, hive="skep").standing] == ["m-0"]
    refused = installation.run("scale", "m=2", check=False)
    assert refused.returncode == 3, refused.stderr
    for words in (
        "2 GPUs",
        "of which 1 run, there is room for 0",
        "twin has 0 of 2 GPUs",
        "big has 1 of 1 GPUs",
    ):
        assert words in refused.stderr


def test_replicas_of_one_card_are_spread_and_never_share_one(
    nodes, mixed, install, weights, tmp_path
):
    installation = install()
    too_many = config_of(tmp_path, nodes.address, weights, replicas=4)
    refused = installation.run("up", "--config", too_many, "--port", "0", check=False)
    assert refused.returncode == 3, refused.stderr
    needs = "each needs 1 GPU, 1 CPU, 2.0 GiB of memory"
    assert f"4 replicas of `m`, there is room for 3: {needs}" in refused.stderr
    assert "plain has no sglang installed" in refused.stderr
    installation.up("up", "--config", config_of(tmp_path, nodes.address, weights, replicas=3))
    assert cards_seen(replicas(installation)) == [("big", "0"), ("twin", "0"), ("twin", "1")]


def test_a_model_by_name_is_planned_for_the_kind_of_node_that_is_fastest(
    nodes, mixed, install, weights
):
    installation = install()
    planned = installation.run(
        "up",
        "qwen3-8b",
        "--engine",
        "sglang",
        "--checkpoint",
        str(weights),
        "--cluster",
        nodes.address,
        "--port",
        "0",
        "-d",
        check=False,
    )
    assert planned.returncode == 0, planned.stderr
    kinds = {"twin": f"2x {TWIN}", "big": f"1x {BIG}"}
    ((name, kind), (_, second_kind)) = sorted(
        kinds.items(), key=lambda item: f"planned for {item[1]}" not in planned.stderr
    )
    assert f"planned for {kind} ({name})" in planned.stderr
    assert f"warning: {second_kind} is left out" in planned.stderr
    assert {row["node"] for row in replicas(installation).values()} == {name}


def test_cards_that_somebody_else_holds_are_not_counted_on(
    nodes, mixed, install, weights, tmp_path
):
    """Ray lends them all the same: a replica that comes later says so, and starts when its card is
    free.
    """
    twin, _ = mixed
    twin.hold([0, 20000])
    installation = install()
    refused = installation.run(
        "up",
        "--config",
        config_of(tmp_path, nodes.address, weights, tp=2),
        "--port",
        "0",
        check=False,
    )
    assert refused.returncode == 3, refused.stderr
    for words in (
        "each needs 2 GPUs",
        "big has 1 of 1 GPUs",
        "twin has busy cards: GPU 1 (4.5 GiB of 24.0 GiB free)",
    ):
        assert words in refused.stderr
    started = installation.run(
        "up", "--config", config_of(tmp_path, nodes.address, weights), "--port", "0", "-d"
    )
    assert (
        "warning: twin is left out: it has busy cards: GPU 1 (4.5 GiB of 24.0 GiB free)"
        in started.stderr
    )
    assert "plain" not in started.stderr, "it has no card anyway"
    assert cards_seen(replicas(installation)) == [("big", "0")]
    installation.run("scale", "m=3")
    busy = until(
        lambda: [
            row for row in replicas(installation).values() if "GPU 1 is busy" in (row["why"] or "")
        ]
    )
    assert busy, installation.run("ps").stdout
    assert (
        "`nvidia-smi` on that node shows which process uses it; next attempt in" in busy[0]["why"]
    )
    twin.hold([0, 0])
    assert until(
        lambda: all(row["state"] == "ready" for row in replicas(installation).values())
    ), installation.run("ps").stdout
    assert cards_seen(replicas(installation)) == [("big", "0"), ("twin", "0"), ("twin", "1")]


@pytest.mark.parametrize(
    "visible", ["1,0", "1"], ids=["the first of two is lent", "the other one is kept from Ray"]
)
def test_with_fewer_gpus_than_cards_those_are_looked_at_that_ray_would_lend(
    nodes, install, weights, tmp_path, visible
):
    """The first of CUDA_VISIBLE_DEVICES, whatever its number;
    somebody else is on the other one.
    """
    pair = Cards(tmp_path / "pair", TWIN, 24576, 2)
    pair.hold([20000, 0])
    nodes.add(
        "pair",
        num_cpus=2,
        num_gpus=1,
        memory=8 * GIB,
        env_vars={**pair.env, "CUDA_VISIBLE_DEVICES": visible},
    )
    installation = install()
    installation.up("up", "--config", config_of(tmp_path, nodes.address, weights))
    assert cards_seen(replicas(installation)) == [("pair", "1")]
