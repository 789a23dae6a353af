"""What `skep export` writes for Ray, read back and held against the schema of the Ray that is installed."""

import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest

pytestmark = pytest.mark.ray

yaml = pytest.importorskip("yaml")

from skep.catalog.options import Draft, Options  # noqa: E402
from skep.catalog.presets import Preset  # noqa: E402
from skep.engines.export import RAY_DOCUMENTS, RAY_FORMS, export  # noqa: E402
from skep.engines.export.ray_serve import ACCELERATORS, RAY_VERSION  # noqa: E402
from skep.engines.export.recipe import recipe_of  # noqa: E402
from skep.engines.export.yaml_text import yaml_text  # noqa: E402
from skep.presetfile import serve_of, shipped_presets  # noqa: E402

NASTY = ["a b", "it's", '"quoted"', "$HOME", "`id`", "100%", "back\\slash", "two\nlines", "tab\there", "ümlaut", "#no",
         "", "\\", "a: b", "- x", "{}", "[", "*", "&a", "!", "~", "-x", "日本\u2028x", "1", "1.5", "1e3", "0x1", "012",
         "true", "No", "null", "2024-01-01", "12:30", "😀", "\x7f\x85", "a:", ":a", "a:b:c", "@x", " x "]  # fmt: skip
PLAIN = Preset(
    name="mine", title="Mine", engine="vllm", model="qwen3-8b", checkpoint="Qwen/Qwen3-8B-AWQ", served_as="qwen",
    hardware="4x h100-sxm", source="my own", slots=4, replicas=2,
)  # fmt: skip


def recipes():
    for preset in shipped_presets().values():
        if preset.engine == "vllm":
            context = serve_of(preset).context_tokens
            yield recipe_of(preset, context_tokens=context, port=8400, engine_port=8500)
    for fields in (
        {"options": Options(tp=2, draft=Draft("draft", 4, "some/draft"), tool_parser="hermes")},
        {"options": Options(dp=4, ep=True), "replicas": 1},
        {"extra": ("--disable-log-stats", "--seed", "1"), "checkpoint": "/data/model"},
    ):
        yield recipe_of(replace(PLAIN, **fields), context_tokens=4096, port=8400, engine_port=8500)


@pytest.fixture(scope="module")
def schema():
    return pytest.importorskip("ray.serve.schema", reason="this Ray is without Serve", exc_type=ImportError)


@pytest.mark.parametrize("text", NASTY)
def test_every_value_comes_back_from_yaml(text):
    value = {"a": text, text or "k": [text, {"b": text}], "n": [1, 0.9, 1e-05, True, None, {}, []]}
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize("form", RAY_FORMS)
def test_what_is_written_reads_back_as_what_is_checked(form):
    for made in recipes():
        found = yaml.safe_load(export(made, form))
        if form == "kuberay":
            found = yaml.safe_load(found["spec"]["serveConfigV2"])
        assert found == RAY_DOCUMENTS[form](made)


def test_the_names_of_cards_are_rays_own():
    known = vars(import_module("ray.util.accelerators.accelerators")).values()
    assert set(ACCELERATORS.values()) <= {one for one in known if isinstance(one, str)}


def test_it_is_written_for_the_version_that_is_tested():
    assert import_module("ray").__version__ == RAY_VERSION


@pytest.mark.parametrize("form", RAY_FORMS)
def test_ray_takes_every_preset_of_vllm(form, schema):
    from skep.cluster.serve_schema import check_serve

    assert schema.ServeDeploySchema
    for made in recipes():
        assert check_serve(RAY_DOCUMENTS[form](made), RAY_VERSION).startswith("checked against the Serve schema")


def test_the_command_says_against_which_ray_it_checked(schema, tmp_path):
    assert schema.ServeDeploySchema
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "skep", "export", "qwen3.6-27b-3090-mtp3", "--as", "kuberay"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0
    (said,) = done.stderr.splitlines()
    assert said.startswith("checked against the Serve schema")
    assert f"Ray {RAY_VERSION}" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accelerator_type", "GeForce-RTX-3090"),
        ("engine", "vLLM"),
        ("log_engine_metrics", "perhaps"),
    ],
)
def test_a_field_of_the_llm_configuration_that_ray_refuses_is_named(field, value, schema):
    from skep.cluster.serve_schema import check_serve
    from skep.errors import SkepError

    assert schema.ServeDeploySchema
    document = RAY_DOCUMENTS["ray-serve"](next(recipes()))
    if "LLM" not in check_serve(document, RAY_VERSION).partition("; not")[0]:
        pytest.skip("this Ray is without its LLM configuration")
    document["applications"][0]["args"]["llm_configs"][0][field] = value
    with pytest.raises(SkepError, match=rf"applications\.0\.args\.llm_configs\.0\.{field}"):
        check_serve(document, RAY_VERSION)
