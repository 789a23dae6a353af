"""The shipped presets say what the write-ups say, figure by figure."""

from dataclasses import replace

import pytest

from skep.catalog.needs import (
    RunEnvironment,
    best_figure,
    figure_words,
    figures_lost,
    lost_words,
    missing_needs,
    other_cards,
    other_version,
    stand_in_words,
)
from skep.config.presets import serve_of, shipped_presets

# tok/s by concurrency, as printed; several at one concurrency are several shapes or runs.
FIGURES = {
    "qwen3.6-27b-3090-mtp5": [(1, 100.3), (1, 66)],
    "qwen3.6-27b-3090-mtp3": [(1, 64.3), (1, 89.5)],
    "qwen3.6-27b-3090-turboquant": [(1, 60.6), (1, 82.5)],
    "qwen3.6-27b-2x3090-replicas": [(1, 81.8), (2, 154.0), (4, 225.4), (8, 167.0)],
    "qwen3.6-27b-2x3090-awq-eager": [(1, 25.1)],
    "qwen3.6-27b-2x3090-awq": [(1, 43.2)],
    "qwen3.6-27b-2x3090-awq-mtp3": [(1, 51.1)],
    "qwen3.6-35b-a3b-2x3090-ep": [(1, 90.3), (1, 98.9), (2, 161.5), (4, 282.7), (8, 282.2)],
    "qwen3-coder-30b-a3b-3090": [(1, 167), (2, 215), (3, 227), (4, 336)],
    "qwen3-coder-30b-a3b-2x3090-nvlink": [(1, 166), (2, 218), (3, 245), (4, 399)],
    "qwen3-coder-30b-a3b-2x3090-pcie": [(1, 160), (2, 201), (3, 235), (4, 360)],
    "qwen2.5-coder-32b-3090": [(1, 39), (2, 63), (3, 69), (4, 127)],
    "qwen2.5-coder-32b-2x3090-nvlink": [(1, 31), (2, 46), (3, 48), (4, 82)],
    "gemma-4-31b-4x3090": [(1, 76.9), (1, 81.35), (1, 75.4), (1, 78.6), (1, 73.7)],
    "gemma-4-31b-2x3090": [(1, 63.31)],
    "gemma-4-31b-4x3090-ollama": [(1, 41)],
    "qwen3.6-27b-2x3090-gptq": [(1, 72.18)],
    "qwen3.6-27b-2x3090-gptq-eager": [(1, 11.74)],
    "qwen3.6-27b-4x3090-gptq": [(1, 84.17)],
    "gpt-oss-20b-4090": [(1, 127), (2, 108), (3, 143), (5, 177)],
    "qwen3-coder-30b-a3b-4090": [(1, 80), (2, 88), (3, 105), (5, 137)],
    "qwen-27b-b70": [(1, 13.4), (50, 1100)],
}
TIMES = {  # TTFT and TPOT in ms, None where not printed
    "qwen3.6-27b-2x3090-replicas": [(1000, 11.2), (840, 11.9), (1440, 15.1), (19000, 20.4)],
    "qwen3.6-35b-a3b-2x3090-ep": [(298, 9.95), (277, 10.04), (556, 11.85), (705, 13.47), (13400, 13.56)],
    "qwen3.6-27b-3090-mtp5": [(None, 9.7), (None, None)],
    "qwen3.6-27b-3090-mtp3": [(None, 12.3), (None, 11.0)],
    "qwen3.6-27b-3090-turboquant": [(None, 12.2), (None, None)],
    "qwen3.6-27b-2x3090-awq-eager": [(None, 35.6)],
    "qwen3.6-27b-2x3090-awq": [(None, 18.5)],
    "qwen3.6-27b-2x3090-awq-mtp3": [(None, 14.3)],
    "gpt-oss-20b-4090": [(64, None), (139, None), (150, None), (290, None)],
    "qwen3-coder-30b-a3b-4090": [(135, None), (110, None), (135, None), (191, None)],
    "qwen-27b-b70": [(None, None), (11000, None)],
}
SHAPES = {  # tokens in and out
    "qwen3.6-27b-3090-mtp5": [(1024, 4096), (None, None)],
    "qwen3.6-27b-3090-mtp3": [(1024, 256), (1024, 4096)],
    "qwen3.6-27b-3090-turboquant": [(1024, 256), (1024, 4096)],
    "qwen3.6-27b-2x3090-replicas": [(1024, 1024)] * 4,
    "qwen3.6-35b-a3b-2x3090-ep": [(1024, 256), (1024, 4096), (1024, 1024), (1024, 1024), (1024, 1024)],
    "qwen3.6-27b-2x3090-awq-eager": [(1024, 256)],
    "qwen3.6-27b-2x3090-awq": [(1024, 256)],
    "qwen3.6-27b-2x3090-awq-mtp3": [(1024, 256)],
    "qwen-27b-b70": [(1024, 512), (1024, 512)],
}
PER_TASK = {
    "qwen3-coder-30b-a3b-3090": [168, None, None, 101],
    "qwen3-coder-30b-a3b-2x3090-nvlink": [167, None, None, 126],
    "qwen2.5-coder-32b-2x3090-nvlink": [31, None, None, 24],
    "qwen2.5-coder-32b-3090": [39, None, None, 37],
    "gpt-oss-20b-4090": [127, 49, 45, 34],
    "qwen3-coder-30b-a3b-4090": [80, 34, 29, 26],
}
PATCHED = [
    name for name in FIGURES if "3090-mtp" in name or "turboquant" in name or name.endswith(("-replicas", "-ep"))
]


@pytest.fixture(scope="module")
def presets():
    return shipped_presets()


def test_every_recipe_is_there_and_no_other(presets):
    assert set(presets) == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_that_were_printed(presets, name):
    published = presets[name].published
    count = len(published)
    assert [(figure.concurrency, figure.tok_s) for figure in published] == FIGURES[name]
    assert [(figure.ttft_ms, figure.tpot_ms) for figure in published] == TIMES.get(name, [(None, None)] * count)
    assert [(f.input_tokens, f.output_tokens) for f in published] == SHAPES.get(name, [(None, None)] * count)
    assert [figure.per_task_tok_s for figure in published] == PER_TASK.get(name, [None] * count)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_by_which_metric_and_clock_it_was_taken(presets, name):
    quad = name.startswith("gemma") or "gptq" in name
    for figure in presets[name].published:
        metric = "decode" if quad or figure.tok_s == 13.4 else "combined" if figure.tok_s == 1100 else "output"
        unsaid = (
            name == "qwen-27b-b70" or figure.tok_s == 66
        )  # a news item; a figure to expect, with no bench beside it
        assert (figure.metric, figure.clock) == (metric, None if unsaid else "engine" if quad else "client")


def test_versions_are_told_only_where_their_author_told_them(presets):
    told = {name: {figure.engine_version for figure in presets[name].published} for name in presets}
    assert {name for name, versions in told.items() if versions == {"0.19.2 / dev205"}} == set(PATCHED)
    assert told["gemma-4-31b-4x3090"] == {"0.19.1"}
    assert told["gemma-4-31b-4x3090-ollama"] == {"0.21.2"}
    assert told["qwen3-coder-30b-a3b-3090"] == {"0.17"}
    assert told["qwen3.6-27b-4x3090-gptq"] == told["gpt-oss-20b-4090"] == told["qwen-27b-b70"] == {None}


@pytest.mark.parametrize("name", FIGURES)
def test_every_preset_becomes_something_to_serve(presets, name):
    found = presets[name]
    serve = serve_of(found)
    assert (serve.preset, serve.checkpoint, serve.slots) == (name, found.checkpoint, found.slots)
    assert serve.context_tokens >= 8192
    assert found.source
    assert found.title
    assert found.notes


def test_the_patched_ones_name_image_patches_driver_and_checkpoint(presets):
    for name in PATCHED:
        found = presets[name]
        assert [need.kind for need in found.needs] == ["driver", "image", "patch", "patch", "step", "checkpoint"]
        assert found.container.image == "vllm/vllm-openai:nightly-07351e0883470724dd5a7e9730ed10e01fc99d08"
        assert "python3 -m vllm._genesis.patches.apply_all" in found.container.before
        assert dict(found.env)["GENESIS_ENABLE_P82"] == "1"
        assert all(figure.needs for figure in found.published)
    assert presets["qwen3.6-27b-2x3090-replicas"].checkpoint == "Lorbus/Qwen3.6-27B-int4-AutoRound"
    assert presets["qwen3.6-35b-a3b-2x3090-ep"].checkpoint == "QuantTrio/Qwen3.6-35B-A3B-AWQ"


def test_a_checkpoint_that_no_author_named_is_marked(presets):
    named = {name for name, found in presets.items() if not found.stand_in}
    assert named == {*PATCHED, *(name for name in presets if "-awq" in name), "gpt-oss-20b-4090"}


def test_without_patches_and_nightly_the_published_figures_are_lost(presets):
    found = presets["qwen3.6-27b-2x3090-replicas"]
    here = RunEnvironment(engine_version="0.20.0", driver_version="580.159.03", checkpoint=found.checkpoint)
    missing = missing_needs(found, here)
    assert [need.id for need in missing] == ["image", "genesis", "tolist", "packages"]
    assert figures_lost(found, missing) == list(found.published)
    assert lost_words(found, missing) == (
        "without the pinned nightly vllm/vllm-openai:nightly-07351e0…, the Genesis patches (v7.14+), the CUDA-graph "
        "patch patch_tolist_cudagraph.py and the packages xxhash, pandas and scipy "
        "the published 225 tok/s at C=4 and 3 more figures do not apply"
    )


@pytest.mark.parametrize(
    ("here", "missing"),
    [
        (RunEnvironment(), ["driver", "image", "genesis", "tolist", "packages", "checkpoint"]),
        (RunEnvironment(driver_version="570.172.08", in_container=True), ["driver", "checkpoint"]),
        (RunEnvironment(driver_version="575.51", in_container=True, checkpoint="/data/Qwen3.6-27B-int4-AutoRound"), []),
        (
            RunEnvironment(
                engine_version="0.19.2rc1.dev205+g07351e088",
                driver_version="580.1",
                checkpoint="/c/hub/models--Lorbus--Qwen3.6-27B-int4-AutoRound/snapshots/1",
                env={"SKEP_HAVE": "genesis, tolist,packages"},
            ),
            [],
        ),
        (RunEnvironment(engine_version="0.19.2rc1.dev206+g17351e088", driver_version="580", in_container=False,
              env={"SKEP_HAVE": "genesis,tolist,packages"}, checkpoint="other/Qwen3.6-27B"), ["image", "checkpoint"]),
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_here_counts_as_missing(presets, here, missing):
    assert [need.id for need in missing_needs(presets["qwen3.6-27b-3090-mtp5"], here)] == missing


def test_a_checkpoint_that_was_never_named_cannot_be_had(presets):
    found = presets["qwen-27b-b70"]
    missing = missing_needs(found, RunEnvironment(checkpoint=found.checkpoint, in_container=True))
    assert lost_words(found, missing).endswith(
        "the published 1,100 tok/s combined at C=50 and 1 more figure do not apply"
    )


def test_nothing_is_lost_where_nothing_is_needed(presets):
    found = presets["qwen2.5-coder-32b-3090"]
    assert missing_needs(found, RunEnvironment()) == []
    assert lost_words(found, []) is None
    assert figure_words(best_figure(found)) == "127 tok/s at C=4"


def test_every_need_is_named_by_a_figure(presets):
    for found in presets.values():
        assert {need.id for need in found.needs} == {name for figure in found.published for name in figure.needs}


@pytest.mark.parametrize(
    ("version", "in_container", "met"),
    [("vllm 0.10.1.1", False, True), ("vllm 0.32.0", False, False), (None, True, False)],
)
def test_a_tag_that_moves_does_not_bring_what_was_measured(presets, version, in_container, met):
    found = presets["qwen3.6-27b-2x3090-awq"]
    missing = missing_needs(found, RunEnvironment(engine_version=version, in_container=in_container))
    assert [need.id for need in missing] == ([] if met else ["image"])


def test_the_checkpoint_of_a_recipe_in_a_container_is_had_as_real_files(presets):
    for name in PATCHED:
        assert any("--local-dir" in line for line in presets[name].notes)
    env = dict(presets["qwen3.6-35b-a3b-2x3090-ep"].env)
    assert env["GENESIS_ENABLE_P72_PROFILE_RUN_CAP"] == "1"


# Cards, versions and checkpoints that are not those of the figures


@pytest.mark.parametrize(
    ("hardware", "cards", "said"),
    [
        ("2x rtx-3090", ["NVIDIA GeForce RTX 3090"] * 2, None),
        ("2x rtx-3090", ["NVIDIA GeForce RTX 3090"] * 4, None),
        ("2x rtx-3090", ["NVIDIA GeForce RTX 3090"], "measured on 2x rtx-3090, here is 1x rtx-3090"),
        ("2x rtx-3090", ["NVIDIA GeForce RTX 4090"] * 2, "measured on 2x rtx-3090, here are 2x rtx-4090"),
        ("rtx-3090", ["NVIDIA GeForce RTX 3090 Ti"], "measured on rtx-3090, here is 1x rtx-3090-ti"),
        ("rtx-3090", ["Something New"], "measured on rtx-3090, here is 1x Something New"),
        ("rtx-4090", [], "measured on rtx-4090, no card is seen here"),
        ("rtx-3090 + rtx-4090", ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090"], None),
        ("4x rtx-3090: nvlink(0-1,2-3)", ["NVIDIA GeForce RTX 3090"] * 4, None),
        ("cpu", [], None),
        ("cpu", ["NVIDIA GeForce RTX 3090"], None),
    ],
)
def test_cards_are_held_against_those_of_the_figures(presets, hardware, cards, said):
    assert other_cards(replace(presets["gpt-oss-20b-4090"], hardware=hardware), cards) == said


@pytest.mark.parametrize(
    ("published", "here", "said"),
    [
        ("0.19.1", "vllm 0.19.1", None),
        ("0.19.1", "vllm 0.19.1.1", "measured with vllm 0.19.1, here is 0.19.1.1"),
        ("0.17", "0.17.2", None),
        ("0.17", "vllm 0.32.0", "measured with vllm 0.17, here is 0.32.0"),
        ("0.19.2 / dev205", "0.19.2rc1.dev205+g07351e088", None),
        ("0.19.2 / dev205", "0.19.2", "measured with vllm 0.19.2 / dev205, here is 0.19.2"),
        ("0.19.1", None, None),
        (None, "0.32.0", None),
    ],
)
def test_a_version_is_held_against_that_of_the_figures(presets, published, here, said):
    assert other_version(replace(presets["qwen3.6-27b-4x3090-gptq"], engine_version=published), here) == said


def test_a_stand_in_is_said_to_be_one(presets):
    said = stand_in_words(presets["gemma-4-31b-4x3090"])
    assert said == ("which checkpoint was measured is not published: cyankiwi/gemma-4-31B-it-AWQ-4bit stands in for it")
    assert stand_in_words(presets["gpt-oss-20b-4090"]) is None
