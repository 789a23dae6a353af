"""What `skep up NAME --cluster` stands for, on clusters that are made up; and what is refused
before one is asked.
"""

import os

import pytest
from in_process import call, refused
from msgspec.structs import replace

from skep.cluster import placement
from skep.cluster.nodes import ClusterSurvey, Node, NodeCard, NodeFacts
from skep.config.settings import Cluster, Settings
from skep.deploy.resolve import ServeRequest
from skep.errors import DoesNotFit, EngineError, SkepError, UserError
from skep.paths import user_paths
from skep.report.terminal import note
from skep.units import GIB

RTX = NodeCard(0, "NVIDIA GeForce RTX 3090", 24 * GIB, "8.6", used_bytes=0)
H200 = NodeCard(0, "NVIDIA H200", 141 * GIB, "9.0", used_bytes=0)
AWQ = "Qwen/Qwen3-8B-AWQ"
pytestmark = pytest.mark.usefixtures("paths")


def node(name, card=None, count=0, engines=("vllm",), free_gpus=None):
    if card:
        cards = tuple(replace(card, index=number) for number in range(count))
    else:
        cards = ()
    facts = NodeFacts(
        16, 128 * GIB, cards, "0", dict.fromkeys(("embedded", "simulated", *engines))
    )
    free = count if free_gpus is None else free_gpus
    return Node(
        f"id-{name}",
        name,
        "10.0.0.1",
        False,
        16,
        count,
        128 * GIB,
        16,
        free,
        128 * GIB,
        facts=facts,
    )


def serve_on(request, survey):
    return placement.serve_on(request, survey, user_paths(os.environ), note)


def survey(*nodes):
    return ClusterSurvey("10.0.0.1:6379", "2.60.0", nodes)


PAIR = survey(node("a", RTX, 2), node("b", RTX, 2))
MIXED = survey(node("a", RTX, 2), node("b", RTX, 2), node("big", H200, 1), node("plain"))


def test_what_skep_carries_runs_on_every_node_and_a_preset_where_its_cards_are(
    capsys,
):
    serve = serve_on(ServeRequest("smollm2-135m", slots=8), survey(node("a"), node("b")))
    assert (serve.engine, serve.replicas, serve.slots) == ("embedded", 2, 8)
    assert serve_on(ServeRequest("smollm2-135m", replicas=5), PAIR).replicas == 5
    serve = serve_on(ServeRequest("qwen3.6-27b-2x3090-replicas"), PAIR)
    assert (serve.engine, serve.replicas, serve.slots, serve.gpus) == ("vllm", 2, 2, ())
    assert "preset qwen3.6-27b-2x3090-replicas" in capsys.readouterr().err
    with pytest.raises(DoesNotFit, match="needs rtx-3090, no node of the cluster has 1 GPU"):
        serve_on(ServeRequest("qwen3.6-27b-3090-mtp5"), survey(node("a")))


# A node whose card somebody else's process holds.
HELD = node("a", replace(RTX, used_bytes=20 * GIB), 1)


def test_a_model_is_planned_for_all_cards_of_nodes_of_one_kind():
    serve = serve_on(ServeRequest(AWQ), PAIR)
    assert serve.kind == "2x NVIDIA GeForce RTX 3090"
    assert serve.replicas * serve.options.cards == 4
    assert (serve.gpus, serve.checkpoint) == ((), AWQ)


def test_nodes_of_one_kind_are_planned_once(capsys):
    serve_on(ServeRequest(AWQ), PAIR)
    assert capsys.readouterr().err.count("planned for 2x NVIDIA GeForce RTX 3090 (a, b)") == 1


def test_as_many_replicas_as_are_typed_are_planned_over_the_nodes():
    serve = serve_on(ServeRequest(AWQ, replicas=4), PAIR)
    assert (serve.replicas, serve.options.cards) == (4, 1)


def test_more_replicas_than_cards_are_refused_with_the_cards_of_each_node():
    with pytest.raises(DoesNotFit) as caught:
        serve_on(ServeRequest(AWQ, replicas=9), PAIR)
    assert "9 replicas" in caught.value.message
    assert "a has 2 of 2 GPUs" in caught.value.message


def test_a_model_is_planned_around_a_card_that_is_held(capsys):
    serve = serve_on(ServeRequest(AWQ), survey(HELD, node("b", RTX, 1)))
    assert serve.replicas == 1
    assert "planned for 1x NVIDIA GeForce RTX 3090 (b)" in capsys.readouterr().err


def test_a_card_that_is_held_is_named_where_replicas_lack_it():
    with pytest.raises(
        DoesNotFit, match=r"2 replicas of .*; b has 1 of 1 GPUs.*; a has busy cards: GPU 0"
    ):
        serve_on(ServeRequest(AWQ, replicas=2), survey(HELD, node("b", RTX, 1)))


def test_a_model_is_planned_around_a_card_that_the_cluster_has_lent():
    lent = node("b", RTX, 1, free_gpus=0)
    serve = serve_on(ServeRequest(AWQ), survey(HELD, lent, node("big", H200, 1)))
    assert serve.kind == "1x NVIDIA H200"


def test_where_every_card_is_held_the_room_on_each_is_told():
    with pytest.raises(DoesNotFit, match=r"a has busy cards: GPU 0 \(4.0 GiB of 24.0 GiB free\)"):
        serve_on(ServeRequest(AWQ), survey(HELD))


def test_of_several_kinds_of_nodes_the_fastest_serves(
    capsys,
):
    assert serve_on(ServeRequest(AWQ), MIXED).kind == "1x NVIDIA H200"
    assert (
        "warning: 2x NVIDIA GeForce RTX 3090 is left out: it would be slower"
        in capsys.readouterr().err
    )
    many = serve_on(ServeRequest(AWQ, replicas=4), MIXED)
    assert (many.kind, many.replicas) == ("2x NVIDIA GeForce RTX 3090", 4)
    serve = serve_on(
        ServeRequest("Qwen/Qwen3-32B-FP8"), survey(node("a", RTX, 1), node("big", H200, 1))
    )
    assert serve.kind == "1x NVIDIA H200"
    assert "warning: 1x NVIDIA GeForce RTX 3090 is left out" in capsys.readouterr().err
    with pytest.raises(SkepError) as caught:
        serve_on(ServeRequest("deepseek-v3.2", checkpoint="org/deepseek"), MIXED)
    assert caught.value.exit_code == 3
    assert "no kind of node" in caught.value.message


def test_without_cards_or_the_usual_engine_another_is_planned_or_must_be_named():
    serve = serve_on(ServeRequest(AWQ), survey(node("a", RTX, 2, engines=("sglang",))))
    assert serve.engine == "sglang"
    with pytest.raises(EngineError, match="vllm is not installed on a"):
        serve_on(ServeRequest(AWQ, engine="vllm"), survey(node("a", RTX, 2, engines=("sglang",))))
    with pytest.raises(UserError, match="no NVIDIA GPU is in the cluster to plan `qwen3-8b` for"):
        serve_on(ServeRequest("qwen3-8b"), survey(node("a")))
    serve = serve_on(ServeRequest("org/model", engine="vllm"), survey(node("a")))
    assert (serve.engine, serve.replicas, serve.kind) == ("vllm", 1, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("up", "smollm2-135m", "--cluster", "127.0.0.1:1", "--gpus", "0"),
            "--cluster and --gpus contradict",
        ),
        (
            ("up", "--cluster", "127.0.0.1:1", "--engine-port", "9000"),
            "--cluster and --engine-port contradict",
        ),
        (("up", "--cluster", "somewhere"), "`somewhere` is not the address of a Ray cluster"),
        (("up", "--hive", "mine"), "--hive names a deployment of a cluster"),
    ],
)
def test_what_cannot_be_is_said_before_a_cluster_is_asked(words, message):
    assert message in refused(*words)


def test_no_cluster_at_the_address_is_said_at_once():
    error = call("up", "smollm2-135m", "--cluster", "127.0.0.1:1").error
    assert "no cluster at 127.0.0.1:1" in error.message or "Ray is not installed" in error.message


@pytest.mark.parametrize(
    ("words", "wished"),
    [
        ((), None),
        (("--cluster", "10.0.0.2:6379"), "10.0.0.2:6379"),
        (("--hive", "mine"), "10.0.0.1:6379"),
    ],
)
def test_only_a_cluster_that_was_typed_wins_over_the_file_at_the_next_reload(
    monkeypatch, tmp_path, words, wished
):
    """Else a file that names another one is read for ever without a word."""
    (tmp_path / "skep.toml").write_text('[cluster]\naddress = "10.0.0.1:6379"\n')
    begun = []
    monkeypatch.setattr(
        "skep.cli.hive.start", lambda overrides, *_args, **_options: begun.append(overrides)
    )
    call("up", *words, check=0)
    (overrides,) = begun
    assert (overrides.cluster.address if overrides.cluster else None) == wished
    settings = Settings(cluster=Cluster("10.0.0.9:6379"))
    assert overrides.apply(settings).cluster.address == (wished or "10.0.0.9:6379")
