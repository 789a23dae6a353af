"""The models: widths add up to the published totals, KV and state are those of their configurations."""

import dataclasses

import pytest

from skep.catalog.models import find_geometry, geometries, geometry
from skep.errors import UserError
from skep.planner.setup import parts_of

KNOWN = geometries()

# Bytes of KV a token in BF16, and of what a sequence keeps whatever its length (state or full windows).
PUBLISHED = {
    "qwen3-0.6b": (114688, None), "qwen3-1.7b": (114688, None), "qwen3-8b": (147456, None),
    "qwen3-32b": (262144, None), "llama-3.1-8b": (131072, None), "llama-3.1-70b": (327680, None),
    "llama-3.3-70b": (327680, None), "llama-3.1-405b": (516096, None), "qwen3-4b": (147456, None),
    "qwen3-14b": (163840, None), "qwen2.5-coder-32b": (262144, None), "mistral-small-3-24b": (163840, None),
    "devstral-small-24b": (163840, None), "smollm2-135m": (23040, None), "gemma-3-12b": (65536, 335544320),
    "gemma-3-27b": (81920, 436207616), "gemma-4-31b": (81920, 838860800), "gemma-4-26b-a4b": (20480, 209715200),
    "gemma-4-12b": (32768, None), "qwen3.5-27b": (65536, 153944064), "qwen3.6-27b": (65536, 153944064),
    "qwen3.8-27b": (65536, 153944064), "qwen3.5-35b-a3b": (20480, 64389120), "qwen3.6-35b-a3b": (20480, 64389120),
    "qwen3.5-122b-a10b": (24576, 153649152), "qwen3.5-397b-a17b": (30720, 192061440),
    "qwen3-next-80b-a3b": (24576, 77266944), "qwen3-coder-next-80b-a3b": (24576, 77266944),
    "nemotron-3-nano-30b-a3b": (6144, 49082368), "qwen3-30b-a3b": (98304, None),
    "qwen3-coder-30b-a3b": (98304, None), "qwen3-235b-a22b": (192512, None), "qwen3-coder-480b-a35b": (253952, None),
    "minimax-m2.5": (253952, None), "minimax-m2.7": (253952, None), "mixtral-8x7b": (131072, None),
    "gpt-oss-20b": (24576, 3145728), "gpt-oss-120b": (36864, 4718592), "glm-4.5-air": (188416, None),
    "glm-4.5": (376832, None), "glm-4.6": (376832, None), "glm-4.7": (376832, None), "glm-4.7-flash": (54144, None),
    "deepseek-v3": (70272, None), "deepseek-r1": (70272, None), "kimi-k2": (70272, None),
}  # fmt: skip

# Billions of parameters as their makers give them: all, and of one token.
TOTALS = {
    "qwen3-8b": (8.2, 8.2), "qwen3-32b": (32.8, 32.8), "llama-3.1-8b": (8.03, 8.03), "qwen3.6-27b": (27, 27),
    "qwen3.6-35b-a3b": (35, 3), "qwen3-30b-a3b": (30.5, 3.3), "gpt-oss-20b": (20.9, 3.6), "gpt-oss-120b": (116.8, 5.1),
    "gemma-4-31b": (30.7, 30.7), "gemma-4-26b-a4b": (25.2, 3.8), "mixtral-8x7b": (46.7, 12.9),
    "qwen3-235b-a22b": (235, 22),
    "deepseek-v3": (671, 37), "kimi-k2": (1026, 32), "glm-4.5-air": (106, 12), "nemotron-3-nano-30b-a3b": (31.6, 3.2),
    "nemotron-3-super-120b-a12b": (120.6, 12.1), "mistral-small-4-119b": (119, 6.5), "nemotron-3-nano-4b": (3.97, 3.97),
}  # fmt: skip


def as_counted(model):
    """The parts with no total to scale to."""
    parts = parts_of(dataclasses.replace(model, params_total=0.0))
    return parts.embedding + parts.head + parts.attention + parts.linear + parts.mlp + parts.shared + parts.experts


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_the_widths_add_up_to_the_total(model):
    """What is counted from the layers is what the model is said to have, and scaling to it leaves nothing out."""
    assert as_counted(model) == pytest.approx(model.params_total, rel=0.03)
    parts = parts_of(model)
    scaled = parts.embedding + parts.head + parts.small + parts.mlp + parts.experts
    assert scaled == pytest.approx(model.params_total, rel=0.01)
    assert min(parts.attention, parts.embedding) > 0
    assert parts.vision == model.vision_params


@pytest.mark.parametrize("model", KNOWN.values(), ids=KNOWN)
def test_a_geometry_is_consistent(model):
    assert model.full_layers + model.sliding_layers + model.linear_layers <= model.layers
    assert model.full_layers > 0
    assert model.heads % model.kv_heads == 0
    assert 0 < model.params_active <= model.params_total
    assert model.is_moe or model.params_active == model.params_total
    assert (model.sliding_layers > 0) == (model.sliding_window > 0)
    assert (model.linear_layers > 0) == (model.state_bytes > 0)
    assert (model.experts > 0) == (0 < model.experts_per_token <= model.experts) == (model.expert_intermediate > 0)
    assert model.expert_layers <= model.layers
    assert model.max_context >= 2048
    assert model.mtp_layers == 0 or parts_of(model).draft > 0
    for origin in model.origins.values():
        assert origin.source
        assert origin.confidence in ("A", "B", "C")
    assert set(model.origins) <= {field for field in model.__dataclass_fields__ if field != "id"}


@pytest.mark.parametrize("slug", PUBLISHED)
def test_kv_and_state_are_those_of_the_configuration(slug):
    model, (kv, fixed) = KNOWN[slug], PUBLISHED[slug]
    assert model.kv_bytes_per_token(2) == kv
    if fixed is not None:
        kept = model.state_bytes if model.is_hybrid else model.window_bytes(float("inf"), 2)
        assert kept == pytest.approx(fixed, rel=0.001)


@pytest.mark.parametrize("slug", TOTALS)
def test_totals_are_near_what_the_makers_publish(slug):
    total, active = TOTALS[slug]
    assert KNOWN[slug].params_total / 1e9 == pytest.approx(total, rel=0.015)
    assert KNOWN[slug].params_active / 1e9 == pytest.approx(active, rel=0.12)


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


@pytest.mark.parametrize("typed", ["./qwen3-8b", "/models/qwen3-8b", "", " ", "it", "Qwen/", "qwen3.6-28b"])
def test_a_path_or_another_model_is_not_taken_for_a_name(typed):
    assert find_geometry(typed) is None


@pytest.mark.parametrize(
    ("typed", "hint"), [("qwen3.6-28b", "`qwen3.6-27b`"), *((name, "") for name in ("", "{}", "\U0001f600", "--"))]
)
def test_an_unknown_model_gets_the_nearest_names(typed, hint):
    with pytest.raises(UserError) as caught:
        geometry(typed)
    assert caught.value.message == f"no model is called `{typed}`"
    assert (hint or "config.json") in caught.value.hint
