"""A preset as a Ray Serve configuration and as a RayService: vLLM's flags, slots and cards in Ray's own fields."""

from dataclasses import replace

import pytest

from skep.catalog.gpus import devices
from skep.catalog.options import Draft, Options
from skep.catalog.presets import Preset
from skep.engines.export import RAY_DOCUMENTS, RAY_FORMS, export
from skep.engines.export.engine_kwargs import keywords_of
from skep.engines.export.kuberay import LONGEST_NAME, manifest, service_name
from skep.engines.export.ray_serve import ACCELERATORS
from skep.engines.export.recipe import recipe_of
from skep.engines.export.yaml_text import Literal, yaml_text
from skep.errors import UserError
from skep.presetfile import serve_of, shipped_presets
from skep.units import GIB

PLAIN = Preset(
    name="mine",
    title="Mine",
    engine="vllm",
    model="qwen3-8b",
    checkpoint="Qwen/Qwen3-8B-AWQ",
    served_as="qwen",
    hardware="2x h100-sxm",
    source="my own",
    slots=3,
    replicas=2,
)


def recipe(**fields):
    return recipe_of(replace(PLAIN, **fields), context_tokens=4096, port=9000, engine_port=9100)


def application(**fields):
    return RAY_DOCUMENTS["ray-serve"](recipe(**fields))["applications"][0]


def config(**fields):
    return application(**fields)["args"]["llm_configs"][0]


def workers(**fields):
    return manifest(recipe(**fields))["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]


def pod(**fields):
    return workers(**fields)["template"]["spec"]


# Ray Serve


def test_a_preset_is_one_application_with_its_replicas_and_slots():
    assert RAY_DOCUMENTS["ray-serve"](recipe()) == {
        "http_options": {"host": "127.0.0.1", "port": 9000},
        "applications": [
            {
                "name": "mine",
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {
                    "llm_configs": [
                        {
                            "model_loading_config": {"model_id": "qwen", "model_source": "Qwen/Qwen3-8B-AWQ"},
                            "engine_kwargs": {"max_num_seqs": 3, "max_model_len": 4096},
                            "deployment_config": {"num_replicas": 2, "max_ongoing_requests": 3},
                            "accelerator_type": "H100",
                            "runtime_env": {"env_vars": {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}},
                        }
                    ]
                },
            }
        ],
    }


def test_options_become_the_arguments_that_the_adapter_would_have_typed():
    options = Options(
        quant="awq_marlin", dtype="float16", kv="fp8", tp=2, memory_share=0.9, graphs=True, prefix_cache=False,
        custom_all_reduce=False, draft=Draft("mtp", 3), tool_parser="hermes", trust_remote_code=True,
    )  # fmt: skip
    assert config(replicas=1, options=options)["engine_kwargs"] == {
        "max_num_seqs": 3, "max_model_len": 4096, "quantization": "awq_marlin", "dtype": "float16",
        "kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.9, "enforce_eager": False,
        "enable_prefix_caching": False, "disable_custom_all_reduce": True, "trust_remote_code": True,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        "enable_auto_tool_choice": True, "tool_call_parser": "hermes",
    }  # fmt: skip


def test_the_cards_of_a_replica_stay_on_one_node():
    placed = {"bundle_per_worker": {"GPU": 1}, "strategy": "STRICT_PACK"}
    assert config(replicas=1, options=Options(tp=2))["placement_group_config"] == placed
    assert "placement_group_config" not in config()


def test_data_parallel_ranks_have_a_builder_of_their_own():
    found = application(hardware="4x h100-sxm", replicas=1, slots=8, options=Options(dp=4, ep=True))
    assert found["import_path"] == "ray.serve.llm:build_dp_openai_app"
    one = found["args"]["llm_config"]
    assert one["engine_kwargs"]["data_parallel_size"] == 4
    assert (one["engine_kwargs"]["max_num_seqs"], one["deployment_config"]["max_ongoing_requests"]) == (2, 2)


def test_variables_go_along_and_the_choice_of_cards_stays_behind():
    variables = config(env=(("NCCL_DEBUG", "INFO"),), gpus=(1, 0))["runtime_env"]["env_vars"]
    assert variables["NCCL_DEBUG"] == "INFO"
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} & set(variables)


def test_a_card_that_ray_has_no_name_for_is_left_out_and_said():
    assert "accelerator_type" not in config(hardware="2x rtx-3090")
    assert "Ray Serve LLM has no name for RTX 3090" in export(recipe(hardware="2x rtx-3090"), "ray-serve")
    assert set(ACCELERATORS) <= set(devices())


def test_what_does_not_carry_over_is_said():
    text = export(recipe(reserve=1, extra=("-O3", "--api-key", "sk-secret")), "ray-serve")
    for said in (
        "`reserve` (1 of a replica's slots",
        "keys and quotas",
        "`-O3`",
        "`--api-key`: Ray Serve asks for no key",
    ):
        assert said in text
    assert "sk-secret" not in text


def test_statistics_that_are_off_are_off_for_ray_too():
    """Ray refuses its metrics of the engine together with an engine that keeps none."""
    found = config(extra=("--disable-log-stats",))
    assert (found["engine_kwargs"]["disable_log_stats"], found["log_engine_metrics"]) == (True, False)


@pytest.mark.parametrize("form", RAY_FORMS)
def test_every_shipped_preset_of_vllm_has_both_forms_and_others_say_why_not(form):
    for name, preset in shipped_presets().items():
        context = serve_of(preset).context_tokens
        made = recipe_of(preset, context_tokens=context, port=8400, engine_port=8500)
        if preset.engine == "vllm":
            text = export(made, form)
            assert f"skep export {name} --as {form}" in text
            assert text.endswith("\n")
        else:
            with pytest.raises(UserError, match=f"`{name}` runs {preset.engine}; Ray Serve LLM runs vLLM") as refused:
                export(made, form)
            assert f"skep up {name} --cluster auto" in refused.value.hint


# Flags as keywords


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--seed 1", {"seed": 1}),
        ("--seed -1", {"seed": -1}),
        ("--rope-theta=1e6", {"rope_theta": 1000000.0}),
        ("--enable-lora", {"enable_lora": True}),
        ("--no-enable-lora", {"enable_lora": False}),
        ('--hf-overrides {"a":{"b":[1,2]}}', {"hf_overrides": {"a": {"b": [1, 2]}}}),
        ("--lora-modules a=x b=y", {"lora_modules": ["a=x", "b=y"]}),
        ("--revision 1234567", {"revision": "1234567"}),
        ("--load-format NaN", {"load_format": "NaN"}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ("--host 0.0.0.0 --port 1 --served-model-name m", {}),
    ],
)
def test_a_flag_becomes_the_value_that_vllm_reads_in_it(words, values):
    assert keywords_of(words.split()).values == values


@pytest.mark.parametrize("words", ["-O3", "--compilation-config.level 3", "--distributed-executor-backend mp"])
def test_a_flag_without_a_field_of_its_name_is_left_and_named(words):
    found = keywords_of(words.split())
    assert found.values == {}
    assert words.split()[0] in found.left[0]


# KubeRay


def test_a_pod_has_the_cards_of_one_replica_and_memory_for_its_weights():
    group = workers(replicas=1, options=Options(tp=2))
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [1, 1, 1]
    assert group["rayStartParams"] == {"num-gpus": "2"}
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "5", "memory": "174Gi", "nvidia.com/gpu": "2"}  # not known: 2 x 80, as the cards have
    planned = replace(recipe(), weights_bytes=5 * GIB + 1)
    spec = manifest(planned)["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "14Gi"  # 6 + 6 + 2


def test_weights_come_from_the_hub_or_from_a_claim():
    hub = pod()["containers"][0]
    assert [one["name"] for one in hub["env"]] == ["RAY_USAGE_STATS_ENABLED", "HF_TOKEN"]
    assert "volumeMounts" not in hub
    own = pod(checkpoint="/data/qwen")
    assert own["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mine-weights"
    assert own["containers"][0]["volumeMounts"][0]["mountPath"] == "/model"
    inside = RAY_DOCUMENTS["kuberay"](recipe(checkpoint="/data/qwen"))["applications"][0]["args"]["llm_configs"][0]
    assert inside["model_loading_config"]["model_source"] == "/model"


@pytest.mark.parametrize(
    ("name", "label"),
    [("qwen3.6-27b_x", "qwen3-6-27b-x"), ("7b", "m-7b"), ("...", "model"), ("a" * 46 + "-b", "a" * 46)],
)
def test_a_name_becomes_a_label_that_kubernetes_takes(name, label):
    assert service_name(name) == label
    assert len(label) <= LONGEST_NAME


# YAML


def test_values_are_blocks_and_only_what_could_be_misread_is_quoted():
    value = {
        "plain": "ray.serve.llm:build_openai_app", "port": 8400, "share": 0.9, "small": 1e-05, "on": True, "none": None,
        "text": ["1", "true", "No", "a: b", "#x", "12:30", "", "two\nlines", "x\u2028"],
        "empty": {}, "below": [{"a": 1, "b": [2]}, [3]], "as it is": Literal("k: v\n\nl: |\n  w\n"),
    }  # fmt: skip
    assert (
        yaml_text(value)
        == r"""plain: ray.serve.llm:build_openai_app
port: 8400
share: 0.9
small: 1.0e-05
"on": true
none: null
text:
  - "1"
  - "true"
  - "No"
  - "a: b"
  - "#x"
  - "12:30"
  - ""
  - "two\nlines"
  - "x\u2028"
empty: {}
below:
  - a: 1
    b:
      - 2
  - - 3
"as it is": |
  k: v

  l: |
    w
"""
    )
