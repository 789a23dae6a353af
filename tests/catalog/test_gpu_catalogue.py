"""The GPUs: every value has a source, every name people type is found, the file is what its pieces
say.
"""

import tomllib
from importlib.resources import files

import pytest

from skep.catalog.gpus import devices, find_device
from skep.catalog.names import spellings, table, table_texts

KNOWN = devices()


@pytest.mark.parametrize("file_name", ["gpus.toml", "models.toml"])
def test_the_pieces_of_a_file_are_the_whole_file(file_name):
    """Tables are read one at a time; reading the file at once gives the same."""
    whole = tomllib.loads(files("skep.catalog").joinpath(file_name).read_text(encoding="utf-8"))
    assert list(table_texts(file_name)) == list(whole)
    assert {name: table(file_name, name) for name in whole} == whole


@pytest.mark.parametrize("file_name", ["gpus.toml", "models.toml"])
def test_no_two_entries_claim_one_spelling(file_name):
    claimed = {}
    for name in table_texts(file_name):
        entry = table(file_name, name)
        for spelling in {name, entry["title"], *entry.get("aliases", ())}:
            squeezed = "".join(c for c in spelling.casefold() if c.isalnum() or c in "+/")
            assert claimed.setdefault(squeezed, name) == name, (spelling, name, claimed[squeezed])
            assert spellings(file_name)[squeezed] == name


@pytest.mark.parametrize("device", KNOWN.values(), ids=KNOWN)
def test_every_value_is_possible(device):
    assert device.fp16_tflops > 1
    assert 4 <= device.memory_gib <= 600
    assert 50 <= device.bandwidth_gbs <= 10_000
    assert (device.compute_capability is not None) == (device.vendor == "nvidia")


@pytest.mark.parametrize("device", KNOWN.values(), ids=KNOWN)
def test_speeds_are_those_of_formats_that_the_card_has(device):
    assert device.formats[0] == "fp16"
    assert device.fp8_tflops is None or device.fp8_tflops > device.fp16_tflops
    assert device.fp8_tflops is None or "fp8" in device.formats
    assert device.fp4_tflops is None or "fp4" in device.formats
    assert "fp4" not in device.formats or "fp8" in device.formats


@pytest.mark.parametrize("device", KNOWN.values(), ids=KNOWN)
def test_every_value_says_where_it_was_read(device):
    assert {"memory_gib", "bandwidth_gbs", "fp16_tflops", "formats"} <= set(device.origins)
    for origin in device.origins.values():
        assert len(origin.source) > 4
        assert origin.confidence in ("A", "B", "C")


def test_memory_that_the_system_shares_is_marked():
    shared = {slug for slug, device in KNOWN.items() if device.unified_memory}
    assert {"dgx-spark", "strix-halo", "radeon-890m", "apple-m4-max"} <= shared
    assert "rtx-3090" not in shared


@pytest.mark.parametrize(
    ("typed", "slug"),
    [
        ("RTX 3090", "rtx-3090"),
        ("rtx_3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("nvidia-geforce-rtx-4090", "rtx-4090"),
        ("rtx 4090 24GB", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx-5090-laptop"),
        ("NVIDIA GB10", "dgx-spark"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Intel(R) Arc(TM) A770 Graphics", "arc-a770"),
        ("Apple M4 24GB", "apple-m4"),
        ("M4 Max", "apple-m4-max"),
        ("Strix Halo (Ryzen AI Max+ 395)", "strix-halo"),
        ("910B", "ascend-910b"),
    ],
)
def test_a_card_is_found_however_it_is_typed(typed, slug):
    assert find_device(typed).id == slug


@pytest.mark.parametrize(
    "typed", ["rtx 3060 8gb", "A100-PCIE-64GB", "", "  ", "../x", "(r)", "gb", "24gb"]
)
def test_a_card_of_another_size_is_another_card(typed):
    assert find_device(typed) is None
