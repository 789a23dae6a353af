"""A machine without a GPU is one device, or one for each replica."""

from dataclasses import replace

import pytest

from skep.catalog.gpus import HostFacts
from skep.planner.rigs import cpu_device, cpu_rig
from skep.units import GIB

FACTS = HostFacts(
    os="Linux 6", machine="x86_64", python="3.12", cpu_model="Some CPU", cpu_cores=8, cpu_features=("avx", "avx2"),
    memory_bytes=32 * GIB, memory_available_bytes=None, open_files_soft=None, open_files_hard=None,
)  # fmt: skip


def test_memory_and_speed_are_the_machines():
    card = cpu_device(FACTS, 41.26, measured=True)
    assert (card.vendor, card.title, card.memory_gib, card.bandwidth_gbs) == ("cpu", "Some CPU", 32.0, 41.3)
    assert card.fp16_tflops == pytest.approx(8 * 3 * 32 / 1000)
    assert "copying" in card.origins["bandwidth_gbs"].source


def test_wider_units_compute_more():
    plain, wide = (cpu_device(replace(FACTS, cpu_features=f), 40, measured=True) for f in ((), ("avx2", "avx512f")))
    assert wide.fp16_tflops == 16 * plain.fp16_tflops


def test_replicas_share_the_processor():
    rig = cpu_rig(FACTS, 40.0, measured=False, replicas=2)
    assert [card.bandwidth_gbs for card in rig.cards] == [20.0, 20.0]
    assert "8 cores, 40 GB/s" in rig.title
