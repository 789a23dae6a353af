"""The models: widths add up to the published totals, KV and state are those of their
configurations.
"""

import csv
import dataclasses
from pathlib import Path

import pytest

from skep.catalog.models import find_geometry, geometries
from skep.planner.setup import parts_of

KNOWN = geometries()


def published():
    """By model, as far as it is told: bytes of KV a token in BF16, and of what a sequence keeps
    whatever its length (state or full windows); billions of parameters as their makers give them,
    all and of one token."""
    with (Path(__file__).parent.parent / "data" / "published_geometries.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for slug, *figures in csv.reader(list(file)[1:]):
            yield slug, [float(value) if value else None for value in figures]


def as_counted(model):
    """The parts with no total to scale to."""
    parts = parts_of(dataclasses.replace(model, params_total=0.0))
    return (
        parts.embedding
        + parts.head
        + parts.attention
        + parts.linear
        + parts.mlp
        + parts.shared
        + parts.experts
    )


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_the_widths_add_up_to_the_total(model):
    """What is counted from the layers is what the model is said to have, and scaling to it leaves
    nothing out.
    """
    assert as_counted(model) == pytest.approx(model.params_total, rel=0.03)
    parts = parts_of(model)
    scaled = parts.embedding + parts.head + parts.small + parts.mlp + parts.experts
    assert scaled == pytest.approx(model.params_total, rel=0.01)
    assert min(parts.attention, parts.embedding) > 0
    assert min(parts.linear, parts.mlp, parts.shared, parts.experts) >= 0
    read = (
        scaled
        - parts.head
        - parts.experts * (1 - model.experts_per_token / model.experts if model.experts else 1)
    )
    assert 0.85 < read / model.params_active < 1.25
    assert parts.vision == model.vision_params


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_the_layers_of_a_geometry_add_up(model):
    # These keep a window beside what they compress.
    both = 0 if model.full_entries is None else model.full_layers
    assert model.full_layers + model.sliding_layers + model.linear_layers <= model.layers + both
    assert model.full_layers > 0
    assert model.heads % model.kv_heads == 0
    assert (model.sliding_layers > 0) == (model.sliding_window > 0)
    assert (model.linear_layers > 0) == (model.state_bytes > 0)
    assert model.max_context >= 2048
    assert model.mtp_layers == 0 or parts_of(model).draft > 0


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_only_a_mixture_of_experts_reads_less_than_all_parameters(model):
    assert 0 < model.params_active <= model.params_total
    assert model.is_moe or model.params_active == model.params_total
    has_choice = 0 < model.experts_per_token <= model.experts
    assert (model.experts > 0) == has_choice == (model.expert_intermediate > 0)
    assert model.expert_layers <= model.layers


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_every_value_of_a_geometry_says_where_it_was_read(model):
    for origin in model.origins.values():
        assert origin.source
        assert origin.confidence in ("A", "B", "C")
    assert set(model.origins) <= {field for field in model.__dataclass_fields__ if field != "id"}


@pytest.mark.parametrize(("slug", "figures"), [*published()])
def test_kv_and_state_are_those_of_the_configuration_and_totals_are_near_the_makers(slug, figures):
    model, (kv, fixed, total, active) = KNOWN[slug], figures
    if model.is_hybrid:
        fixed_bytes = model.state_bytes
    else:
        fixed_bytes = model.window_bytes(float("inf"), 2)
    assert kv is None or model.kv_bytes_per_token(2) == kv
    assert fixed is None or fixed_bytes == pytest.approx(fixed, rel=0.001)
    assert total is None or model.params_total / 1e9 == pytest.approx(total, rel=0.015)
    assert active is None or model.params_active / 1e9 == pytest.approx(active, rel=0.12)


@pytest.mark.parametrize(
    ("typed", "slug"),
    [
        ("Qwen3 8B", "qwen3-8b"),
        ("Qwen/Qwen3-8B-Instruct", "qwen3-8b"),
        ("qwen 3.6 27b awq", "qwen3.6-27b"),
        ("qwen-3.6-27b", "qwen3.6-27b"),
        ("cyankiwi/Qwen3.6-27B-AWQ-INT4", "qwen3.6-27b"),
        ("RedHatAI/Qwen3-14B-FP8-dynamic", "qwen3-14b"),
        ("gemma-4-31B-it", "gemma-4-31b"),
        ("gemma-3-27b-it-qat", "gemma-3-27b"),
        ("unsloth/gpt-oss-20b-GGUF", "gpt-oss-20b"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "nemotron-3-nano-30b-a3b"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "llama-3.3-nemotron-super-49b"),
        ("Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("Qwen3-Coder-Next-80B-A3B", "qwen3-coder-next-80b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.3-70b"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "ministral-3-8b"),
        ("GLM-4.x(4.6/4.7)", "glm-4.6"),
    ],
)
def test_a_model_is_found_however_it_is_typed(typed, slug):
    assert find_geometry(typed).id == slug


@pytest.mark.parametrize(
    "typed", ["./qwen3-8b", "/models/qwen3-8b", "", " ", "it", "Qwen/", "qwen3.6-28b"]
)
def test_a_path_or_another_model_is_not_taken_for_a_name(typed):
    assert find_geometry(typed) is None
