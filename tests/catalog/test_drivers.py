"""One table says which driver an engine needs: everybody who speaks of drivers asks it."""

import re
from pathlib import Path

import pytest

from skep.catalog.drivers import (
    driver_number,
    driver_table,
    need_of,
    older_release,
    recommended_driver,
)
from skep.catalog.engines import engine_kinds
from skep.config.presets import shipped_presets
from skep.planner.rules import rules

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("engine", "version", "driver"),
    [
        ("vllm", "0.24.0", 580),
        ("vllm", "0.20", 580),
        ("vllm", "0.19.2", 525),
        ("vllm", "0.24.0+cu129", 525),
        ("vllm", None, 580),
        ("vllm", "nightly", 580),
        ("vllm", "2026-07", 580),
        ("sglang", "0.5.17", 580),
        ("sglang", "0.5.10", 525),
    ],
)
def test_the_driver_follows_from_the_cuda_of_the_release(engine, version, driver):
    assert need_of(engine, version).driver == driver


@pytest.mark.parametrize("engine", ["llamacpp", "ollama", "embedded"])
def test_an_engine_built_here_or_elsewhere_has_no_need_that_skep_knows(engine):
    assert need_of(engine, None) is None
    assert older_release(engine, "570.211.01") is None


def test_an_older_driver_gets_the_last_release_for_its_cuda_if_there_is_one():
    assert older_release("vllm", "570.211.01") == "0.19.0"
    assert older_release("sglang", "525.60.13") == "0.5.10"
    assert older_release("vllm", "470.256.02") is None
    assert older_release("vllm", "unreadable") is None


@pytest.mark.parametrize("engine", sorted(driver_table().releases))
def test_the_release_that_is_named_is_one_for_cuda_12(engine):
    releases = driver_table().releases[engine]
    assert need_of(engine, releases.last_for_cuda_12).cuda == 12
    assert need_of(engine, releases.cuda_13_since).cuda == 13
    assert need_of(engine, engine_kinds()[engine].package.partition("==")[2]).cuda == 13


def test_a_card_may_have_a_recommendation_beyond_what_its_engine_needs():
    assert recommended_driver("NVIDIA GeForce RTX 5090") == 590
    assert recommended_driver("NVIDIA GeForce RTX 3090") is None


def test_nobody_else_has_a_number_of_a_driver_of_their_own():
    """Doctor said 580, the plan 575 and the installation 580."""
    table = driver_table()
    drivers = {*table.oldest.values(), *table.recommended.values()}
    texts = [
        (DOCS / name).read_text(encoding="utf-8") for name in ("engines.md", "troubleshooting.md")
    ]
    documented = {
        int(number) for text in texts for number in re.findall(r"[Dd]river (\d{3})", text)
    }
    assert documented <= drivers
    assert not [case for case in rules()["driver"].cases if re.search(r"\d{3}", case.sentence)]


def test_a_driver_of_a_shipped_preset_is_the_table_s_or_named_as_its_author_s_word():
    """Five recipes said 575 for a build that the table gives 525."""
    sentences = [
        (preset.name, need.what, need_of(preset.engine, preset.engine_version))
        for preset in shipped_presets().values()
        for need in preset.needs
        if need.kind == "driver"
    ]
    assert sentences
    for name, expected, need in sentences:
        own_words, _, number = expected.rpartition("driver ")
        ours = need is not None and driver_number(number) == need.driver
        assert ours or own_words == "its author says ", name
