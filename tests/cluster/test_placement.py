"""From settings and a survey to replicas with what each asks of Ray: pure, on made-up clusters."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import Gpu
from skep.catalog.presets import EngineOptions
from skep.cluster.discover import lendable, links_among
from skep.cluster.nodes import ClusterSurvey, Node, NodeCard, NodeFacts, busy_cards
from skep.cluster.placement import HOST_BYTES_A_CARD, place_launches
from skep.cluster.replica_actor import check_cards
from skep.config.settings import Cluster, Serve, Settings
from skep.engines.base import Launch
from skep.errors import DoesNotFit, EngineError, UserError
from skep.host.facts import GpuCard
from skep.paths import user_paths
from skep.supervisor.replica_set import changes
from skep.units import GIB

WITHIN = {"embedded": "xllamacpp 1", "fake": None, "simulated": None}
RTX = NodeCard(0, "NVIDIA GeForce RTX 3090", 24 * GIB, "8.6", used_bytes=0)


def node(name, cpus=8, gpus=0, memory=64 * GIB, *, engines=WITHIN, cards=(), free=None, why=None):
    facts = NodeFacts(cpus, memory, tuple(cards), "0", dict(engines))
    free = {"free_cpus": cpus, "free_gpus": gpus, "free_memory_bytes": memory, **(free or {})}
    return Node(
        f"id-{name}",
        name,
        "10.0.0.1",
        False,
        cpus,
        gpus,
        memory,
        **free,
        facts=None if why else facts,
        why=why,
    )


def rtx_node(name, count=2, engines=("vllm",), **fields):
    cards = [replace(RTX, index=number) for number in range(count)]
    return node(
        name, gpus=count, cards=cards, engines={**WITHIN, **dict.fromkeys(engines)}, **fields
    )


def survey(*nodes, here=None):
    return ClusterSurvey("10.0.0.1:6379", "2.60.0", nodes, here)


@pytest.fixture
def place(tmp_path):
    def placed(cluster, *serves, running=None, tell=lambda _line: None, **options):
        settings = Settings(serve=serves, cluster=Cluster("auto"), **options)
        paths = user_paths({"HOME": str(tmp_path)})
        return place_launches(settings, paths, lambda: cluster, running=running, tell=tell)

    return placed


FAKE = Serve(model="m", engine="fake")
VLLM = Serve(model="org/model", engine="vllm", options=EngineOptions(tp=2))
SINGLE = Serve(model="org/model", engine="vllm")
SMALL = Serve(model="smollm2-135m")


def test_a_replica_on_cards_asks_for_them_for_a_cpu_each_and_for_host_memory(place):
    (first, second) = place(survey(rtx_node("a"), rtx_node("b")), replace(VLLM, replicas=2))
    assert (first.name, second.name) == ("org-model-0", "org-model-1")
    assert (first.place.cards, first.place.cpus, first.place.memory_bytes) == (
        2,
        2,
        2 * HOST_BYTES_A_CARD,
    )
    assert (first.gpus, first.place.nodes, first.place.source, first.checkpoint) == (
        (),
        (),
        None,
        "org/model",
    )


def test_a_model_that_can_be_pulled_is_pulled_by_name_on_each_node_and_not_here(place):
    """This machine is a node that cannot serve: nothing is fetched onto it, the catalogue tells
    the size.
    """
    cluster = survey(node("a", engines={}), node("b"), node("c"), here="id-a")
    (launch,) = place(cluster, SMALL)
    assert (launch.weights, launch.place.source, launch.place.nodes) == (
        None,
        "smollm2-135m",
        ("b", "c"),
    )
    assert launch.place.memory_bytes > 50_000_000


def test_the_cores_of_a_node_are_divided_among_the_replicas_expected_there(place):
    pair = survey(node("a", 8), node("b", 8))
    assert [launch.threads for launch in place(pair, replace(SMALL, replicas=2))] == [8, 8]
    assert [launch.place.cpus for launch in place(pair, replace(SMALL, replicas=4))] == [4.0] * 4
    assert [launch.threads for launch in place(pair, replace(SMALL, threads=3))] == [3]


def test_one_replica_more_leaves_those_that_run_as_they_are(place):
    first = place(survey(node("a"), node("b")), SMALL)
    busy = survey(node("a", free={"free_cpus": 0}), node("b"))
    again = place(busy, replace(SMALL, replicas=2), running=first)
    assert again[0] == first[0]
    assert again[1].threads == 8
    with pytest.raises(
        DoesNotFit, match=r"4 replicas .* of which 1 run, there is room for 1: each needs 8 CPUs"
    ):
        place(busy, replace(SMALL, replicas=4, threads=8), running=first)


def test_too_few_gpus_are_said_node_by_node(place):
    cluster = survey(
        rtx_node("a"),
        rtx_node("b", free={"free_gpus": 1}),
        node("c", engines={**WITHIN, "vllm": None}),
    )
    with pytest.raises(DoesNotFit) as refused:
        place(cluster, replace(VLLM, replicas=3))
    message = refused.value.message
    needs = "each needs 2 GPUs, 2 CPUs, 4.0 GiB of memory"
    assert f"3 replicas of `org/model`, there is room for 1: {needs}" in message
    for words in ("a has 2 of 2 GPUs", "b has 1 of 2 GPUs", "c has no GPU"):
        assert words in message


@pytest.mark.parametrize("idle_unload_s", [None, 60.0])
def test_nothing_is_loaded_on_demand_and_both_settings_for_it_are_named(place, idle_unload_s):
    """Either may be in the file, or both: who leaves one out is not to come back for the other."""
    with pytest.raises(UserError, match="`m` on a cluster cannot be loaded on demand") as refused:
        place(survey(node("a")), replace(FAKE, on_demand=True, idle_unload_s=idle_unload_s))
    assert refused.value.hint.startswith("leave `on_demand` and `idle_unload` out")


def held(node, *used_gib):
    """With so much of each card in use, by whomever."""
    cards = tuple(
        replace(RTX, index=number, used_bytes=used * GIB) for number, used in enumerate(used_gib)
    )
    return replace(node, facts=replace(node.facts, cards=cards))


def test_a_node_whose_card_somebody_else_holds_gets_nothing_and_is_named(place):
    """Which card is lent is Ray's to say, so that the idle one beside it cannot be counted on."""
    cluster = survey(held(rtx_node("a"), 0, 20), held(rtx_node("b"), 1, 2))
    assert {launch.place.nodes for launch in place(cluster, replace(SINGLE, replicas=2))} == {
        ("b",)
    }
    with pytest.raises(
        DoesNotFit,
        match=r"there is room for 2: .*; b has .*; a has busy cards: GPU 1 \(4.0 GiB of",
    ):
        place(cluster, replace(SINGLE, replicas=3))
    small = replace(SINGLE, options=EngineOptions(memory_share=0.1), replicas=4)
    assert len(place(cluster, small)) == 4, "it takes less than is left"
    with pytest.raises(
        DoesNotFit, match="no card for `org/model` is free: a has busy cards: GPU 0"
    ) as refused:
        place(survey(held(rtx_node("a"), 20, 0)), SINGLE)
    assert "nvidia-smi" in refused.value.hint


def test_a_start_tells_which_nodes_it_does_without_and_why(place):
    lines = []
    cluster = survey(
        rtx_node("a"),
        held(rtx_node("b"), 0, 20),
        rtx_node("c", engines=()),
        node("plain", engines={}),
    )
    (launch,) = place(cluster, SINGLE, tell=lines.append)
    assert lines == [
        "c is left out: it has no vllm installed",
        "b is left out: it has busy cards: GPU 1 (4.0 GiB of 24.0 GiB free)",
    ], "and not `plain`, which has no card anyway"
    place(cluster, replace(SINGLE, replicas=2), running=(launch,), tell=lines.append)
    assert lines[2:] == lines[:1], "a change does not look at who holds the cards"


def test_cards_that_ray_has_lent_already_may_be_full(place):
    """By replicas that stand there, or by programs of others that asked Ray for them."""
    lent = survey(held(rtx_node("a", free={"free_gpus": 1}), 22, 0))
    (first,) = place(lent, SINGLE)
    full = survey(held(rtx_node("a", free={"free_gpus": 1}), 22, 22))
    with pytest.raises(DoesNotFit, match=r"GPU 1 .*; Ray assigned 1 of them"):
        place(full, SINGLE)
    assert len(place(full, replace(SINGLE, replicas=2), running=(first,))) == 2, (
        "for a start, not for a change"
    )


BOTH = "GPU 0 (4.0 GiB of 24.0 GiB free), GPU 1 (1.0 GiB of 24.0 GiB free)"


@pytest.mark.parametrize(
    ("used_gib", "free_gpus", "words"),
    [
        ((0, 20), 2, "GPU 1 (4.0 GiB of 24.0 GiB free)"),
        ((20, 23), 2, BOTH),
        ((20, 23), 1, f"{BOTH}; Ray assigned 1 of them"),
        ((12, 0), 1.5, None),  # a whole card can only be the other one
        ((0, 20), 1, None),  # the one that is lent is empty yet: this cannot be seen
    ],
)
def test_full_cards_are_named_so_that_nobody_ends_the_wrong_program(used_gib, free_gpus, words):
    """Ray tells how many cards it has lent and not which: the hive's own may be among them."""
    reason = busy_cards(held(rtx_node("a", free={"free_gpus": free_gpus}), *used_gib), 0.9)
    assert reason == (words and f"has busy cards: {words}")


def test_cards_are_in_the_order_in_which_ray_lends_them():
    """Ray with one GPU and CUDA_VISIBLE_DEVICES=2,0 lends card 2; the others of the node are not
    looked at.
    """
    gpus = [Gpu(number, "NVIDIA GeForce RTX 3090", 24 * GIB) for number in range(3)]
    memory = [GpuCard(number, 24 * GIB, 0) for number in range(3)]
    assert [gpu.index for gpu in lendable(gpus, memory, "2,0")] == [2, 0]
    assert [gpu.index for gpu in lendable(gpus, memory, None)] == [0, 1, 2]
    assert [gpu.index for gpu in lendable(gpus, (), "2,0")] == [0, 1, 2], "nvidia-smi did not tell"
    assert links_among([2, 0], [(0, 1, "SYS"), (0, 2, "NV4")]) == ((0, 1, "NV4"),)


def test_a_replica_finds_that_its_card_is_busy(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho index, memory.total, memory.used\necho 0, 24576, 20000\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    launch = Launch("m-0", "sglang", "m", None, slots=2, context_tokens=100, threads=1, gpus=(0,))
    with pytest.raises(DoesNotFit, match="GPU 0 is busy"):
        check_cards(launch)


LACKING = survey(node("a"), node("b", why="has no skep in its Ray environment"))


@pytest.mark.parametrize(
    ("cluster", "serve", "error", "words"),
    [
        (
            survey(rtx_node("a")),
            replace(VLLM, options=EngineOptions(tp=4)),
            DoesNotFit,
            "4 GPUs on one node, the .* 2",
        ),
        (
            LACKING,
            VLLM,
            EngineError,
            "a has no vllm installed; b has no skep in its Ray environment",
        ),
        (survey(node("a")), replace(FAKE, gpus=(0,)), UserError, "takes no `gpus`"),
        (survey(node("a")), replace(FAKE, engine_port=9000), UserError, "takes no `engine_port`"),
        (
            survey(rtx_node("a")),
            replace(VLLM, extra=("--port", "1")),
            UserError,
            "--port, which skep sets itself",
        ),
        (
            survey(rtx_node("a")),
            replace(VLLM, kind="8x B200"),
            DoesNotFit,
            "no node of the kind 8x B200",
        ),
    ],
    ids=[
        "wider than every node",
        "no engine",
        "cards",
        "a port",
        "contradicting options",
        "no such kind",
    ],
)
def test_what_no_node_can_serve_is_refused_before_anything_starts(
    place, cluster, serve, error, words
):
    with pytest.raises(error, match=words):
        place(cluster, serve)


def test_an_engine_is_placed_on_the_nodes_that_have_it_and_missed_on_the_others(place):
    cluster = survey(rtx_node("a"), rtx_node("b", engines=()))
    assert place(cluster, VLLM)[0].place.nodes == ("a",)
    with pytest.raises(DoesNotFit, match="b has no vllm installed"):
        place(cluster, replace(VLLM, replicas=2))


def test_a_file_that_is_here_is_looked_into_before_anything_starts(place, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    with pytest.raises(Exception, match=r"broken\.gguf"):
        place(survey(node("a")), Serve(model=str(broken)))


def test_what_computes_nothing_asks_for_next_to_nothing(place):
    (launch,) = place(survey(node("a")), FAKE)
    assert (launch.place.cards, launch.place.cpus, launch.place.memory_bytes) == (0, 0.1, 0)
    assert launch.weights is None
    assert Path(launch.checkpoint or "").name == ""


def names(launches):
    return [launch.name for launch in launches]


def test_what_stands_needs_no_node_so_that_a_lost_one_stops_no_other_change(place):
    """The only node of a model died: its replica waits, other models are scaled, keys are taken
    back.
    """
    wide = replace(VLLM, model="org/wide", options=EngineOptions(tp=4))
    stand = place(survey(rtx_node("a", 4), rtx_node("b")), VLLM, wide, FAKE)
    remaining = survey(rtx_node("b", free={"free_gpus": 0}), rtx_node("c"))
    assert changes(stand, place(remaining, VLLM, wide, FAKE, running=stand)).changed == ()
    launches = place(
        remaining, replace(VLLM, replicas=2), wide, replace(FAKE, replicas=2), running=stand
    )
    assert set(names(launches)) - set(names(stand)) == {"org-model-1", "m-1"}
    reloaded = place(remaining, VLLM, replace(wide, reserve=1), FAKE, running=stand)
    assert {launch.name: launch.reserve for launch in reloaded}["org-wide-0"] == 1, (
        "gateways hear of it all the same"
    )
    for change in ({"replicas": 2}, {"slots": 9}):
        with pytest.raises(DoesNotFit, match="needs 4 GPUs on one node"):
            place(remaining, VLLM, replace(wide, **change), FAKE, running=stand)
    with pytest.raises(EngineError, match="no node can serve `org/model`"):
        place(survey(node("c")), VLLM)
    (alone,) = place(survey(rtx_node("a")), VLLM)
    assert place(survey(node("c")), VLLM, running=(alone,)) == (alone,)


def test_fewer_of_what_stands_need_no_room(place):
    """Two of three nodes are lost: two of the three replicas do not fit on what is left, and wait
    anyway.
    """
    pair = replace(VLLM, replicas=2)
    stand = place(survey(*map(rtx_node, "abc")), replace(VLLM, replicas=3))
    remaining = survey(rtx_node("a"))
    assert names(place(remaining, pair, running=stand)) == ["org-model-0", "org-model-1"]
    assert len(place(remaining, replace(pair, slots=1), running=stand)) == 2, (
        "what changes may wait for room"
    )
