"""What `skep up NAME` stands for, on machines with and without cards."""

import shutil
from pathlib import Path

import pytest

from skep.cli.resolve import ServeOptions, parse_gpus, serve_for
from skep.errors import DoesNotFit, SkepError, UserError

SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) cat <<'END'
index, name, memory.total [MiB], compute_cap, power.limit [W], driver_version
0, NVIDIA GeForce RTX 3090, 24576 MiB, 8.6, 350.00 W, 580.159.03
1, NVIDIA GeForce RTX 3090, 24576 MiB, 8.6, 350.00 W, 580.159.03
END
;;
--query-gpu=index,memory*) printf '0, 24576, 300\\n1, 24576, 300\\n' ;;
*) echo "CUDA Version: 13.0" ;;
esac
"""


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    monkeypatch.setenv("PATH", f"{bin_dir}:{Path(shutil.which('sh')).parent}")
    return bin_dir


@pytest.fixture
def two_3090s(folders):
    program = folders / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)


def test_a_model_that_skep_carries_is_served_by_the_embedded_engine(folders):
    assert serve_for(ServeOptions("smollm2-135m")) is None
    assert serve_for(ServeOptions("mine.gguf")) is None


def test_an_engine_asked_for_by_name_is_started_as_told_where_there_is_no_card(folders):
    serve = serve_for(ServeOptions("org/model", engine="vllm", slots=16, context=4096))
    assert (serve.engine, serve.model, serve.slots, serve.context_tokens) == ("vllm", "org/model", 16, 4096)
    assert serve.options.given == {}


def test_a_model_of_the_catalogue_without_a_card_and_an_engine_is_one_clear_line(folders):
    with pytest.raises(UserError, match="no NVIDIA GPU is here to plan `qwen3-8b` for"):
        serve_for(ServeOptions("qwen3-8b"))


def test_a_name_that_nobody_knows_gets_the_nearest_ones(folders):
    with pytest.raises(UserError) as refused:
        serve_for(ServeOptions("smolm2-135"))
    assert "smollm2-135m" in refused.value.hint


def test_a_flag_for_plans_without_a_card_says_so(folders):
    with pytest.raises(UserError, match="--quant: no NVIDIA GPU is here to plan for"):
        serve_for(ServeOptions("org/model", engine="vllm", quant="awq"))


def test_a_checkpoint_on_own_cards_is_served_as_the_planner_has_it_best(two_3090s):
    serve = serve_for(ServeOptions("Qwen/Qwen3-8B-AWQ"))
    assert serve.engine == "vllm"
    assert serve.checkpoint == "Qwen/Qwen3-8B-AWQ"
    assert serve.replicas * serve.options.cards == 2
    assert serve.slots >= 2


def test_a_mere_name_on_own_cards_asks_for_its_checkpoint(two_3090s):
    with pytest.raises(UserError, match="which checkpoint of `qwen3-8b`"):
        serve_for(ServeOptions("qwen3-8b"))
    assert serve_for(ServeOptions("qwen3-8b", checkpoint="org/x-AWQ", quant="awq")).checkpoint == "org/x-AWQ"


def test_a_model_too_large_for_the_cards_ends_with_exit_3(two_3090s):
    with pytest.raises(SkepError) as refused:
        serve_for(ServeOptions("deepseek-v3.2", checkpoint="org/deepseek"))
    assert refused.value.exit_code == 3


def test_a_preset_is_served_as_it_is_written_and_no_plan_changes_it(two_3090s, capsys):
    serve = serve_for(ServeOptions("qwen3.6-27b-2x3090-replicas"))
    assert (serve.engine, serve.replicas, serve.slots) == ("vllm", 2, 2)
    said = capsys.readouterr().err
    assert "225" in said
    assert "not apply" in said
    with pytest.raises(UserError, match="--tp would make another recipe"):
        serve_for(ServeOptions("qwen3.6-27b-2x3090-replicas", tp=2))


def test_a_preset_for_cards_is_not_started_without_any(folders):
    with pytest.raises(DoesNotFit, match="wants rtx-3090, this machine has no GPU"):
        serve_for(ServeOptions("qwen3.6-27b-3090-mtp5"))


def test_a_preset_on_other_cards_says_so_and_goes_on(two_3090s, capsys):
    assert serve_for(ServeOptions("gpt-oss-20b-4090")).engine == "llamacpp"
    assert "warning: measured on rtx-4090, here are 2x rtx-3090" in capsys.readouterr().err


def test_a_checkpoint_outside_the_catalogue_is_started_as_told(two_3090s, capsys):
    assert serve_for(ServeOptions("org/nobody-knows", engine="vllm")).engine == "vllm"
    assert "without a plan" in capsys.readouterr().err
    with pytest.raises(UserError, match="not in the catalogue"):
        serve_for(ServeOptions("org/nobody-knows"))


def test_a_path_that_is_not_there_is_what_is_wrong(folders):
    with pytest.raises(UserError, match="does not exist"):
        serve_for(ServeOptions("/no/such/folder"))


@pytest.mark.parametrize("text", ["a", "0,", "0;1", "-1", ""])
def test_cards_are_given_by_number(text):
    with pytest.raises(UserError, match="are no cards"):
        parse_gpus(text)
    assert parse_gpus("0, 2") == (0, 2)
