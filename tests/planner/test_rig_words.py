"""Rigs as people write them, and as a machine describes itself."""

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import Gpu, HostFacts
from skep.config.rigs import cpu_rig, parse_rig, rig_of_host
from skep.errors import UserError
from skep.planner.setup import is_geforce


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rtx-3090", ["rtx-3090"]),
        ("2x rtx-3090", ["rtx-3090"] * 2),
        ("2 x RTX 3090", ["rtx-3090"] * 2),
        ("8x3090", ["rtx-3090"] * 8),
        ("rtx-3090 x2", ["rtx-3090"] * 2),
        ("NVIDIA GeForce RTX 3090 * 2", ["rtx-3090"] * 2),
        ("rtx-5090 + rtx-3090-ti", ["rtx-5090", "rtx-3090-ti"]),
        ("rtx-5090 + 2x rtx-3090", ["rtx-5090", "rtx-3090", "rtx-3090"]),
    ],
)
def test_cards_are_counted_however_they_are_typed(text, names):
    assert [card.id for card in parse_rig(text).cards] == names


@pytest.mark.parametrize(
    ("text", "p2p"),
    [
        ("2x rtx-3090", False),
        ("2x rtx-3090: p2p", True),
        ("2x rtx-a6000", True),
        ("2x rtx-6000-ada", True),
    ],
)
def test_geforce_cards_do_not_read_each_other_unless_it_is_said(text, p2p):
    assert parse_rig(text).link(0, 1).p2p is p2p


@pytest.mark.parametrize(
    ("name", "expected"), [("rtx-5090", True), ("rtx-pro-6000", False), ("l40s", False)]
)
def test_a_geforce_card_is_known_by_its_name(name, expected):
    assert is_geforce(parse_rig(name).cards[0]) is expected


def test_nvlink_on_four_3090s_is_two_bridged_pairs():
    """`--link nvlink`: PCIe is between the pairs."""
    rig = parse_rig("4x rtx-3090", "nvlink")
    kinds = {(a, b): rig.link(a, b).kind for a in range(4) for b in range(a + 1, 4)}
    assert [pair for pair, kind in kinds.items() if kind == "nvlink"] == [(0, 1), (2, 3)]
    assert parse_rig("2x rtx-3090", "nvlink").link(0, 1).gbs == 56.2


@pytest.mark.parametrize(
    ("text", "link", "pair", "kind"),
    [
        ("8x h100-sxm", None, (0, 7), "nvlink"),
        ("8x h200", None, (3, 4), "nvlink"),
        ("2x h100-pcie", None, (0, 1), "pcie"),
        ("2x h100-sxm", "pcie", (0, 1), "pcie"),
    ],
)
def test_a_link_follows_from_the_cards_or_is_said_of_all(text, link, pair, kind):
    assert parse_rig(text, link).link(*pair).kind == kind


def test_links_are_said_of_pairs_and_of_the_others():
    rig = parse_rig("4x rtx-3090: nvlink(0-1,2-3), pcie4x8")
    assert (rig.link(0, 1).kind, rig.link(2, 3).kind) == ("nvlink", "nvlink")
    assert rig.link(0, 2).title == rig.link(1, 3).title == "PCIe 4.0 x8"
    assert parse_rig("3x rtx-3090: pcie3x4").link(0, 2).gbs == pytest.approx(3.94, rel=0.01)


def test_a_price_is_of_one_card():
    assert parse_rig("2x rtx-3090@800").price == 1600
    assert parse_rig("rtx-5090@2500 + rtx-3090@800").price == 3300
    assert parse_rig("rtx-5090 + rtx-3090@800").price is None


@pytest.mark.parametrize(
    ("text", "link", "words"),
    [
        ("", None, "names no card"),
        ("2x", None, "no GPU is called `2x`"),
        ("rtx-3095", None, "no GPU is called `rtx-3095`"),
        ("2x rtx-5090", "nvlink", "rtx-5090 has no NVLink"),
        ("rtx-5090", "nvlink", "rtx-5090 has no NVLink"),
        ("2x rtx-3090", "carrier-pigeon", "is not a link"),
        ("2x rtx-3090: nvlink(0-2)", None, "no pair `0-2`"),
        ("2x rtx-3090: nvlink(1-1)", None, "no pair `1-1`"),
        ("2x rtx-3090: pcie9x8", None, "is not a link"),
        ("2x rtx-3090: ((", None, "not understood"),
        ("2x rtx-3090@cheap", None, "`cheap`"),
        ("99x rtx-3090", None, "99 cards"),
    ],
)
def test_what_makes_no_sense_is_one_line(text, link, words):
    with pytest.raises(UserError) as caught:
        parse_rig(text, link)
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def host(*gpus, links=()):
    return HostFacts(
        "Linux", "x86_64", "3.11", None, 8, (), None, None, None, None, gpus=gpus, links=links
    )


def gpu(index, name="NVIDIA GeForce RTX 3090", gib=24, **facts):
    return Gpu(index, name, gib << 30, **facts)


def test_this_machine_is_read_with_its_links():
    slots = {"pcie_generation_max": 4, "pcie_lanes": 8}
    facts = host(
        gpu(0, **slots),
        gpu(1, **slots),
        gpu(2, **slots),
        links=((0, 1, "NV4"), (0, 2, "PHB"), (1, 2, "SYS")),
    )
    rig = rig_of_host(facts).rig
    assert [card.id for card in rig.cards] == ["rtx-3090"] * 3
    assert (rig.link(0, 1).kind, rig.link(0, 1).gbs) == ("nvlink", 56.2)
    assert (rig.link(0, 2).title, rig.link(0, 2).p2p) == ("PCIe 4.0 x8", False)


def test_an_unknown_card_of_this_machine_is_taken_as_its_relative_and_said():
    unknown = gpu(0, "NVIDIA GeForce RTX 5999", 48, compute_capability="12.0")
    resolved = rig_of_host(host(unknown))
    (card,) = resolved.rig.cards
    assert (card.memory_gib, card.family) == (48, "blackwell")
    assert "is not in the catalogue" in resolved.notes[0]


def test_a_machine_without_a_card_that_reports_enough_is_refused():
    with pytest.raises(UserError, match="reports too little"):
        rig_of_host(host(Gpu(0, "Mystery", None)))
    with pytest.raises(UserError, match="no GPU was found") as caught:
        rig_of_host(host())
    assert "--gpu" in caught.value.hint


CPU = replace(host(), cpu_model="Some CPU", cpu_features=("avx", "avx2"), memory_bytes=32 << 30)


def test_a_cpu_computes_by_its_units_and_replicas_share_it():
    (card,) = cpu_rig(CPU, 41.26).cards
    assert (card.vendor, card.title, card.memory_gib, card.bandwidth_gbs) == (
        "cpu",
        "Some CPU",
        32.0,
        41.3,
    )
    assert card.fp16_tflops == pytest.approx(8 * 3 * 32 / 1000)
    assert "copying" in card.origins["bandwidth_gbs"].source
    rigs = (cpu_rig(replace(CPU, cpu_features=f), 40) for f in ((), ("avx2", "avx512f")))
    plain, wide = (rig.cards[0] for rig in rigs)
    assert wide.fp16_tflops == 16 * plain.fp16_tflops
    rig = cpu_rig(CPU, 40.0, replicas=2)
    assert [card.bandwidth_gbs for card in rig.cards] == [20.0, 20.0]
    assert "8 cores, 40 GB/s" in rig.title
