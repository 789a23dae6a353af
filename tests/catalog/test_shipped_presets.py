"""The shipped presets say what the write-ups say, figure by figure."""

import csv
from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.catalog.presets import (
    RunEnvironment,
    best_figure,
    figure_words,
    figures_lost,
    lost_words,
    missing_needs,
    other_cards,
    stand_in_words,
    version_beside,
)
from skep.config.presets import serve_of, shipped_presets

NUMBERS = (
    "concurrency",
    "tok_s",
    "ttft_ms",
    "tpot_ms",
    "input_tokens",
    "output_tokens",
    "per_task_tok_s",
)
WORDS = ("metric", "clock", "engine_version")  # a version is told only where its author told it


def printed_figures():
    """What the write-ups print, by preset; several at one concurrency are several shapes or
    runs.
    """
    rows = {}
    with (Path(__file__).parent.parent / "data" / "printed_figures.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for row in csv.DictReader(file):
            numbers = (float(row[name]) if row[name] else None for name in NUMBERS)
            rows.setdefault(row["preset"], []).append(
                (*numbers, *(row[name] or None for name in WORDS))
            )
    return rows


FIGURES = printed_figures()
PATCHED = [
    name
    for name in FIGURES
    if "3090-mtp" in name or "turboquant" in name or name.endswith(("-replicas", "-ep"))
]


@pytest.fixture(scope="module")
def presets():
    return shipped_presets()


def test_every_recipe_is_there_and_no_other(presets):
    assert set(presets) == {*FIGURES, *(name for name, preset in presets.items() if preset.broken)}


def test_what_its_author_could_not_start_has_no_figures_and_says_what_was_seen(presets):
    broken = {name: preset for name, preset in presets.items() if preset.broken}
    assert set(broken) == {"qwen2.5-coder-32b-2x3090-pcie"}
    assert all(
        preset.broken.startswith("SIGBUS") and not preset.published for preset in broken.values()
    )


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_that_were_printed_and_every_preset_can_be_served(presets, name):
    preset = presets[name]
    figures = [
        tuple(getattr(figure, name) for name in (*NUMBERS, *WORDS)) for figure in preset.published
    ]
    assert figures == FIGURES[name]
    assert {need.id for need in preset.needs} == {
        need for figure in preset.published for need in figure.needs
    }
    assert all((preset.source, preset.title, preset.notes))
    serve = serve_of(preset)
    assert (serve.preset, serve.checkpoint, serve.slots) == (name, preset.checkpoint, preset.slots)
    assert serve.context_tokens >= 8192


@pytest.mark.parametrize("name", PATCHED)
def test_a_patched_preset_names_image_patches_driver_and_checkpoint(presets, name):
    preset = presets[name]
    kinds = [need.kind for need in preset.needs]
    assert kinds == ["driver", "image", "patch", "patch", "step", "checkpoint"]
    nightly = "vllm/vllm-openai:nightly-07351e0883470724dd5a7e9730ed10e01fc99d08"
    assert preset.container.image == nightly
    assert "python3 -m vllm._genesis.patches.apply_all" in preset.container.before
    assert dict(preset.env)["GENESIS_ENABLE_P82"] == "1"
    assert all(figure.needs for figure in preset.published)
    assert any("--local-dir" in line for line in preset.notes)  # had as real files


def test_the_patched_presets_serve_the_checkpoints_of_their_write_ups(presets):
    assert presets["qwen3.6-27b-2x3090-replicas"].checkpoint == "Lorbus/Qwen3.6-27B-int4-AutoRound"
    experts = presets["qwen3.6-35b-a3b-2x3090-ep"]
    assert experts.checkpoint == "QuantTrio/Qwen3.6-35B-A3B-AWQ"
    assert dict(experts.env)["GENESIS_ENABLE_P72_PROFILE_RUN_CAP"] == "1"


def test_a_checkpoint_that_no_author_named_is_marked(presets):
    named = {name for name, preset in presets.items() if not preset.stand_in}
    assert named == {*PATCHED, *(name for name in presets if "-awq" in name), "gpt-oss-20b-4090"}


def test_without_patches_and_nightly_the_published_figures_are_lost(presets):
    preset = presets["qwen3.6-27b-2x3090-replicas"]
    run_environment = RunEnvironment(
        engine_version="0.20.0", driver_version="580.159.03", checkpoint=preset.checkpoint
    )
    missing = missing_needs(preset, run_environment)
    assert [need.id for need in missing] == ["image", "genesis", "tolist", "packages"]
    assert figures_lost(preset, missing) == list(preset.published)
    words = lost_words(preset, missing)
    assert words.startswith(
        "without image, genesis, tolist, packages the published 225 tok/s at C=4 does not apply"
    )
    unnamed = presets["qwen-27b-b70"]  # a checkpoint that was never named cannot be had
    missing = missing_needs(unnamed, RunEnvironment(checkpoint=unnamed.checkpoint))
    assert lost_words(unnamed, missing).startswith(
        "without checkpoint the published 1,100 tok/s combined at C=50 does not apply"
    )
    free = presets["qwen2.5-coder-32b-3090"]  # nothing is needed
    assert (missing_needs(free, RunEnvironment()), lost_words(free, [])) == ([], None)
    assert figure_words(best_figure(free)) == "127 tok/s at C=4"


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        (RunEnvironment(), ["driver", "image", "genesis", "tolist", "packages", "checkpoint"]),
        (
            RunEnvironment(
                driver_version="575.51",
                checkpoint="/c/hub/models--Lorbus--Qwen3.6-27B-int4-AutoRound/snapshots/1",
                env={"SKEP_HAVE": "image, genesis, tolist,packages"},
            ),
            [],
        ),
        (
            RunEnvironment(
                driver_version="570.172.08",
                checkpoint="other/Qwen3.6-27B",
                env={"SKEP_HAVE": "genesis,tolist,packages"},
            ),
            ["driver", "image", "checkpoint"],
        ),
    ],
)
def test_what_is_not_known_to_be_here_counts_as_missing(presets, environment, missing):
    assert [
        need.id for need in missing_needs(presets["qwen3.6-27b-3090-mtp5"], environment)
    ] == missing


@pytest.mark.parametrize(
    ("version", "missing"), [("vllm 0.10.1.1", []), ("vllm 0.32.0", ["image"]), (None, ["image"])]
)
def test_an_image_is_met_by_the_engine_of_its_version(presets, version, missing):
    needs = missing_needs(
        presets["qwen3.6-27b-2x3090-awq"], RunEnvironment(engine_version=version)
    )
    assert [need.id for need in needs] == missing


# Cards, versions and checkpoints that are not those of the figures


@pytest.mark.parametrize(
    ("hardware", "cards", "words"),
    [
        ("2x rtx-3090", ["NVIDIA GeForce RTX 3090"] * 2, None),
        ("2x rtx-3090", ["NVIDIA GeForce RTX 3090"] * 4, None),
        (
            "2x rtx-3090",
            ["NVIDIA GeForce RTX 3090"],
            "measured on 2x rtx-3090, this machine has 1x rtx-3090",
        ),
        (
            "2x rtx-3090",
            ["NVIDIA GeForce RTX 4090"] * 2,
            "measured on 2x rtx-3090, this machine has 2x rtx-4090",
        ),
        (
            "rtx-3090",
            ["NVIDIA GeForce RTX 3090 Ti"],
            "measured on rtx-3090, this machine has 1x rtx-3090-ti",
        ),
        ("rtx-3090", ["Something New"], "measured on rtx-3090, this machine has 1x Something New"),
        ("rtx-4090", [], "measured on rtx-4090, this machine has no GPU"),
        ("rtx-3090 + rtx-4090", ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090"], None),
        ("4x rtx-3090: nvlink(0-1,2-3)", ["NVIDIA GeForce RTX 3090"] * 4, None),
        ("cpu", [], None),
        ("cpu", ["NVIDIA GeForce RTX 3090"], None),
    ],
)
def test_cards_are_held_against_those_of_the_figures(presets, hardware, cards, words):
    assert other_cards(replace(presets["gpt-oss-20b-4090"], hardware=hardware), cards) == words


@pytest.mark.parametrize(
    ("published", "installed", "words"),
    [
        ("0.19.1", "vllm 0.19.1", None),
        ("0.17", "0.17.2", None),
        ("0.17", "vllm 0.32.0", "0.32.0"),
        ("0.19.2 / dev205", "0.19.2rc1.dev205+g07351e088", None),
        ("0.19.1", None, None),
        (None, "0.32.0", None),
    ],
)
def test_a_version_is_held_against_that_of_the_figures(published, installed, words):
    assert version_beside(published, installed) == words


def test_a_stand_in_is_said_to_be_one(presets):
    words = stand_in_words(presets["gemma-4-31b-4x3090"])
    assert words == (
        "the source does not name its checkpoint: skep uses "
        "cyankiwi/gemma-4-31B-it-AWQ-4bit in its place"
    )
    assert stand_in_words(presets["gpt-oss-20b-4090"]) is None
