from __future__ import annotations

import pytest

from skep.catalog.machine import Gpu
from skep.host.nvidia import NvidiaReport, parse_cuda_version, parse_gpus, parse_links, read_nvidia
from skep.units import MIB

DRIVER_GONE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def test_card_is_read_with_all_its_fields(captured):
    """Each column of the query reaches its field, with units taken off."""
    assert parse_gpus(captured("h200/query.csv")) == (Gpu(0, "NVIDIA H200", 143771 * MIB, "9.0", 5, 5, 16, 16, 700.0),)


def test_columns_may_be_missing_or_in_another_order():
    """Columns are found by the name in the header."""
    assert parse_gpus("name, index\nTesla K80, 3\n") == (Gpu(3, "Tesla K80", None),)


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", ""])
def test_field_that_the_driver_does_not_tell_is_unknown(cell):
    """None, never zero and never the bracketed text."""
    text = f"index, name, memory.total [MiB], compute_cap, power.limit [W]\n0, NVIDIA GB10, {cell}, {cell}, {cell}\n"
    assert parse_gpus(text) == (Gpu(0, "NVIDIA GB10", None),)


@pytest.mark.parametrize(
    "text", ["", DRIVER_GONE, "No devices were found\n", 'Field "x" is not a valid field to query.']
)
def test_error_text_holds_no_cards(text):
    """An error message is not mistaken for a table."""
    assert parse_gpus(text) == ()
    assert parse_links(text) == ()
    assert parse_cuda_version(text) is None


@pytest.mark.parametrize(
    ("machine", "version"), [("3090x2-nvlink", "12.8"), ("3090x4-lanes", "13.2"), ("gb10", "13.3")]
)
def test_cuda_version_is_found_in_old_and_new_headers(captured, machine, version):
    """Driver 610 renamed `CUDA Version` to `CUDA UMD Version`."""
    assert parse_cuda_version(captured(f"{machine}/header.txt")) == version


def test_nvlink_pair_is_read_through_the_underlined_header(captured):
    """nvidia-smi underlines the header row with terminal codes."""
    assert parse_links(captured("3090x2-nvlink/topo.txt")) == ((0, 1, "NV4"),)


def test_links_skip_network_cards(captured):
    """Four cards have six pairs; the NIC row and column are not among them."""
    links = parse_links(captured("3090x4-lanes/topo.txt"))
    assert links == (
        (0, 1, "PHB"), (0, 2, "SYS"), (0, 3, "SYS"), (1, 2, "SYS"), (1, 3, "SYS"), (2, 3, "PIX"),
    )  # fmt: skip


def test_two_cards_are_read_from_a_running_program(smi):
    """Cards, driver, CUDA version and links come from three questions to one executable."""
    report = read_nvidia(smi("3090x2-nvlink"))
    assert [gpu.name for gpu in report.gpus] == ["NVIDIA GeForce RTX 3090"] * 2
    assert (report.driver_version, report.cuda_version, report.links) == ("570.211.01", "12.8", ((0, 1, "NV4"),))
    assert report.error is None


def test_missing_program_is_no_error(tmp_path):
    """A host without NVIDIA software is a healthy host."""
    assert read_nvidia(str(tmp_path / "nvidia-smi")) == NvidiaReport()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (f'echo "{DRIVER_GONE}"; exit 9', DRIVER_GONE),  # on standard output
        ("exit 3", "nvidia-smi ended with status 3 and said nothing"),
        ("exec sleep 60", "nvidia-smi did not answer within 0.2 s"),  # as where a card fell off the bus
    ],
    ids=["driver gone", "silent", "hung"],
)
def test_failure_is_told_in_the_words_of_the_program_or_our_own(script, body, error):
    assert read_nvidia(script(body), timeout_s=0.2 if "sleep" in body else 10) == NvidiaReport(error=error)


def test_program_that_may_not_be_run_is_told(tmp_path):
    """A file without the right to execute is not the same as no file."""
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    assert "could not be started" in (read_nvidia(str(path)).error or "")


def test_field_unknown_to_an_old_driver_is_left_out(script):
    """Driver 470 does not know `compute_cap` and refuses the whole query for it."""
    refuse = "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"
    table = "echo 'index, name, driver_version'; echo '0, NVIDIA GeForce RTX 3060, 470.182.03'"
    report = read_nvidia(script(f'case "$1" in *compute_cap*) {refuse} ;; --query*) {table} ;; esac'))
    assert (report.gpus, report.driver_version) == ((Gpu(0, "NVIDIA GeForce RTX 3060", None),), "470.182.03")
    assert report.error is None


def test_cards_left_beside_a_lost_one_are_kept(script):
    """The error is told and the cards that answered are listed."""
    lost = "Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost."
    report = read_nvidia(script(f"echo 'index, name'; echo '0, NVIDIA GeForce RTX 3090'; echo '{lost}'; exit 15"))
    assert (len(report.gpus), report.error) == (1, lost)
