"""Nodes as Ray tells them, and the spreading of replicas over them."""

import json
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from skep import __version__
from skep.cluster.discover import with_facts
from skep.cluster.nodes import (
    ClusterSurvey,
    Node,
    NodeCard,
    NodeFacts,
    allowed,
    assign_nodes,
    capacity,
    has_words,
    host_of,
    named_apart,
    nodes_of,
)
from skep.engines.base import PlacementRequest
from skep.units import GIB
from skep.wire.json_pipe import from_document, to_document


def row(node_id, address="10.0.0.1", *, alive=True, name=None, **resources):
    return {
        "NodeID": node_id,
        "Alive": alive,
        "NodeManagerAddress": address,
        "NodeName": name or address,
        "Resources": resources,
    }


def node(name, cpus=4.0, gpus=0.0, memory=8 * GIB):
    return Node(name, name, "10.0.0.1", False, cpus, gpus, memory, cpus, gpus, memory)


def test_ray_s_rows_become_nodes_the_head_first_the_dead_left_out():
    rows = [
        row("bbbbbbbb", CPU=4.0, GPU=2.0, memory=2.0 * GIB),
        row("aaaaaaaa", CPU=2.0, **{"node:__internal_head__": 1.0}),
        row("cccccccc", alive=False),
    ]
    head, worker = nodes_of(rows, {"bbbbbbbb": {"CPU": 1.0}})
    assert (head.head, head.id) == (True, "aaaaaaaa")
    assert (worker.gpus, worker.free_gpus, worker.free_cpus, worker.memory_bytes) == (
        2,
        0,
        1,
        2 * GIB,
    )


def test_nodes_of_one_name_are_told_apart_by_their_ids():
    nodes = named_apart(nodes_of([row("aaaaaaaa"), row("bbbbbbbb"), row("c", name="tower")], {}))
    assert sorted(node.name for node in nodes) == ["10.0.0.1-aaaaaa", "10.0.0.1-bbbbbb", "tower"]


def test_a_survey_travels_as_json():
    card = NodeCard(0, "NVIDIA GeForce RTX 3090", 24 * GIB, "8.6", 4, 4, 16)
    facts = NodeFacts(
        8, None, (card, replace(card, index=1)), "0", {"vllm": "vllm 1"}, ((0, 1, "NV4"),)
    )
    survey = ClusterSurvey(
        "10.0.0.1:6379",
        "2.60.0",
        (replace(node("a"), facts=facts), replace(node("b"), why="away")),
        "a",
    )
    assert from_document(json.loads(json.dumps(to_document(survey))), ClusterSurvey) == survey
    assert host_of(survey.nodes[0]).links == ((0, 1, "NV4"),)
    assert list(survey.kinds) == ["2x NVIDIA GeForce RTX 3090", "CPU only"]


def test_a_node_with_another_skep_is_said_and_not_believed():
    assert (
        "runs skep 9.9, this machine runs"
        in with_facts(node("a"), {"skep": "9.9", "what": "ever"}).why
    )


def test_cards_that_ray_does_not_lend_are_not_there():
    facts = NodeFacts(8, None, (NodeCard(0, "X", None), NodeCard(1, "X", None)), __version__)
    assert len(with_facts(node("a", gpus=1.0), to_builtins(facts)).facts.cards) == 1
    assert with_facts(node("a"), to_builtins(facts)).facts.cards == ()


def test_replicas_go_where_fewest_are():
    assert assign_nodes([PlacementRequest(cpus=2)] * 4, [node("a", 8), node("b", 4)]) == [
        "a",
        "b",
        "a",
        "b",
    ]


def test_the_widest_choose_first_and_what_wants_no_card_leaves_them_free():
    nodes = [node("cards", gpus=2.0), node("plain")]
    requests = [PlacementRequest(), PlacementRequest(cards=1), PlacementRequest(cards=2)]
    assert assign_nodes(requests, nodes) == ["plain", None, "cards"]


def test_a_place_with_nodes_stands_on_no_other():
    assert assign_nodes([PlacementRequest(nodes=("b",))], [node("a"), node("b", cpus=0.0)]) == [
        None
    ]


def test_nodes_are_chosen_by_name_whatever_id_they_have_now():
    before = nodes_of([row("aaaaaaaa", name="a"), row("bbbbbbbb", name="b")], {})
    after = nodes_of(
        [
            row("aaaaaaaa", name="a"),
            row("bbbbbbbb", name="b", alive=False),
            row("cccccccc", name="b"),
        ],
        {},
    )
    both = nodes_of([row("bbbbbbbb", name="b"), row("cccccccc", name="b")], {})
    place = PlacementRequest(nodes=("b",))
    ids = [[node.id for node in allowed(place, nodes)] for nodes in (before, after, both)]
    assert ids == [["bbbbbbbb"], ["cccccccc"], ["bbbbbbbb", "cccccccc"]]
    assert [node.id for node in allowed(PlacementRequest(nodes=("b-cccccc",)), both)] == [
        "cccccccc"
    ]
    assert allowed(place, nodes_of([row("aaaaaaaa", name="a")], {})) == []
    assert allowed(PlacementRequest(), both) == both


def test_how_many_fit_counts_every_node():
    assert (
        capacity(
            PlacementRequest(cards=2, cpus=2),
            [node("a", gpus=2.0), node("b", gpus=5.0), node("c")],
        )
        == 3
    )


def test_a_long_list_of_nodes_is_cut():
    words = has_words([node(f"n{number}") for number in range(20)])
    assert words.endswith("and 12 more")


amounts = st.integers(0, 6)
nodes_made = st.lists(st.tuples(amounts, amounts), min_size=1, max_size=5)
places_made = st.lists(st.tuples(amounts, amounts), max_size=12)


@settings(max_examples=50, deadline=None)
@given(nodes_made, places_made)
def test_nobody_is_given_more_than_a_node_has(sizes, requests):
    nodes = [
        node(str(number), float(cpus), float(gpus)) for number, (cpus, gpus) in enumerate(sizes)
    ]
    places = [PlacementRequest(cards=cards, cpus=cpus) for cpus, cards in requests]
    assigned = assign_nodes(places, nodes)
    left_out = [place for place, name in zip(places, assigned, strict=True) if name is None]
    for given_node in nodes:
        node_id = given_node.id
        given = [place for place, name in zip(places, assigned, strict=True) if name == node_id]
        assert sum(place.cpus for place in given) <= given_node.cpus
        assert sum(place.cards for place in given) <= given_node.gpus
        remaining = reduce(Node.without, given, given_node)
        assert not any(remaining.has_room(place) for place in left_out)
