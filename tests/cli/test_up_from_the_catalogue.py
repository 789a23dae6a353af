"""`skep up MODEL` and what stands around it on a machine that shows two RTX 3090s: checkpoints,
engines, the hub.
"""

import os

import pytest
from in_process import call, refused

from skep.catalog.models import all_checkpoints, checkpoint_of, checkpoints_of, geometries
from skep.planner.setup import QUANTS

pytestmark = pytest.mark.usefixtures("paths")
SMALL = [
    name
    for name, geometry in geometries().items()
    if checkpoints_of(name) and geometry.params_total < 36e9
]
LARGE = [
    name
    for name, geometry in geometries().items()
    if checkpoints_of(name) and geometry.params_total >= 36e9
]


@pytest.fixture
def vllm(programs):
    """A vLLM whose version is what the function is told."""

    def install(version):
        site = programs / "site"
        (site / f"vllm-{version}.dist-info").mkdir(parents=True)
        (site / f"vllm-{version}.dist-info" / "METADATA").write_text(
            f"Name: vllm\nVersion: {version}\n"
        )
        python = programs / "python-of-vllm"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {os.sys.executable} "$@"\n')
        program = programs / "vllm"
        program.write_text(f"#!{python}\n")
        for path in (python, program):
            path.chmod(0o755)

    return install


def test_the_catalogue_has_many_checkpoints_of_many_models():
    checkpoints = list(all_checkpoints())
    assert len(checkpoints) >= 90
    assert len({checkpoint.model for checkpoint in checkpoints}) >= 40


def test_every_checkpoint_is_of_a_known_model_in_a_known_format_for_a_known_engine():
    for checkpoint in all_checkpoints():
        assert checkpoint.model in geometries(), checkpoint.hub
        assert set(checkpoint.formats) <= set(QUANTS), checkpoint.hub
        assert set(checkpoint.engines) <= {"vllm", "sglang", "llamacpp"}, checkpoint.hub


def test_checkpoints_for_llama_cpp_alone_name_their_files():
    for checkpoint in all_checkpoints():
        assert bool(checkpoint.files) == (checkpoint.engines == ("llamacpp",)), checkpoint.hub


def test_every_checkpoint_says_where_it_is_from_and_how_sure_that_is():
    for checkpoint in all_checkpoints():
        assert checkpoint.origin.confidence in "ABC", checkpoint.hub
        assert checkpoint.origin.source, checkpoint.hub


@pytest.mark.parametrize(
    "model", SMALL[::3] + [pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_a_model_on_two_3090s_names_a_checkpoint_that_exists(two_3090s, model):
    (serve,) = call("up", model, "--dry-run", "--json", check=0).json["serve"]
    assert checkpoint_of(serve["weights"]["source"]).model == model
    assert serve["commands"]


@pytest.mark.slow
@pytest.mark.parametrize("model", LARGE)
def test_a_large_model_on_eight_h200s_names_a_checkpoint_that_exists(model):
    best = call("plan", model, "--gpu", "8x h200", "--json", check=0).json["plans"][0]
    assert checkpoint_of(best["checkpoint"]).model == model


def test_bare_up_offers_what_fits_on_cards_and_a_dry_run_says_what_is_missing(two_3090s):
    message = refused("up")
    assert "which model should this machine (2x rtx-3090) serve?" in message
    for words in ("`skep up qwen3.6-35b-a3b`", "`skep up qwen3.6-27b`", "`skep up --embedded`"):
        assert words in message
    message = call("up", "qwen3.6-27b", "--dry-run", check=0).out
    clients = ("OPENAI_BASE_URL=", "skep agent claude")
    for words in (
        "to be downloaded",
        "not installed: `skep engine install vllm`",
        "vllm serve",
        *clients,
    ):
        assert words in message, words


def test_bare_up_without_cards_serves_the_small_model_and_near_names_are_told(
    programs,
):
    (serve,) = call("up", "--dry-run", "--json", check=0).json["serve"]
    assert (serve["model"], serve["engine"]) == ("smollm2-135m", "embedded")
    assert "qwen3.6-27b" in refused(
        "up", "qwen3.6-28b", "--engine", "vllm", "--quant", "awq", "--simulate"
    )
    message = refused("pull", "qwen3-8b")
    assert "which checkpoint of `qwen3-8b`?" in message
    assert "`skep pull Qwen/Qwen3-8B" in message


def test_a_plan_says_that_its_engine_is_not_here_and_what_installs_each(two_3090s, vllm):
    missing = "vllm is not installed here: `skep engine install vllm` installs it"
    assert any(
        missing in line
        for line in call("plan", "qwen3.6-27b", "--json").json["plans"][0]["caveats"]
    )
    vllm("0.24.0")
    assert not any(
        missing in line
        for line in call("plan", "qwen3.6-27b", "--json").json["plans"][0]["caveats"]
    )
    rows = {row["engine"]: row for row in call("engine", "list", "--json", check=0).json}
    assert rows["vllm"]["version"] == "vllm 0.24.0"
    assert (rows["llamacpp"]["path"], rows["llamacpp"]["install"]) == (
        None,
        "skep engine install llama-server",
    )


def test_an_engine_too_old_for_the_checkpoint_is_one_clear_line(two_3090s, vllm):
    vllm("0.8.2")
    message = refused(
        "up", "qwen3.6-27b", "--checkpoint", "Qwen/Qwen3.6-27B-FP8", "--quant", "fp8"
    )
    assert "Qwen/Qwen3.6-27B-FP8 needs vllm 0.1" in message
    assert "installed is vllm 0.8.2" in message


def test_an_engine_is_not_installed_where_it_could_not_run(two_3090s, programs):
    error = refused("engine", "install", "vllm")
    assert "vllm==0.24.0 is built for CUDA 13 and needs driver 580, this machine has 570" in error
    assert "or `skep engine install vllm --version 0.19.0`, the last release for CUDA 12" in error
    (programs / "nvidia-smi").unlink()
    assert "needs an NVIDIA driver" in refused("engine", "install", "vllm")
    assert "cannot be installed by skep" in refused("engine", "install", "ollama")
    assert "skep has not installed sglang" in refused("engine", "remove", "sglang")
