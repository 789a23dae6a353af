"""What a first user of engines, presets and several models ran into."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.cli.resolve import about_preset
from skep.config.presets import preset, serve_of
from skep.errors import UserError
from skep.supervisor.eviction import Eviction, LoadModel, MemoryBudget, ModelSpec, ModelUsage, UnloadModel

SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) cat <<'END'
index, name, memory.total [MiB], compute_cap, power.limit [W], driver_version
0, NVIDIA GeForce RTX 3090, 24576 MiB, 8.6, 350.00 W, 580.159.03
END
;;
--query-gpu=index,memory*) printf '0, 24576, 300\\n' ;;
*) echo "CUDA Version: 13.0" ;;
esac
"""
MINE = """title = "Mine"
engine = "vllm"
model = "qwen3.6-27b"
checkpoint = "org/x"
hardware = "2x rtx-3090"
source = "me"
slots = 4
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{Path(shutil.which('sh')).parent}")
    return folder


def skep(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_model_that_was_loaded_after_all_is_loaded_again_with_its_next_request():
    lodging = Eviction([ModelSpec("a", {"gpu0": 1})], MemoryBudget({"gpu0": 1}))
    lodging.wanted("a", 0.0)
    assert UnloadModel("a") in lodging.failed("a", "out of memory", 1.0)
    lodging.gone("a", 1.5)
    assert lodging.wanted("a", 2.0, asked=True) == [LoadModel("a")]  # by hand, once the cause was mended
    lodging.loaded("a", 3.0)
    lodging.unload("a", 4.0)
    lodging.told({"a": ModelUsage(busy=0, queued=0, idle_s=100.0)}, 4.5, 4.6)
    lodging.gone("a", 5.0)
    assert lodging.wanted("a", 6.0) == [LoadModel("a")]


@pytest.mark.parametrize("engine", ["vllmm", "remote", ""])
def test_an_engine_that_nobody_knows_in_the_file_is_one_clear_line(programs, tmp_path, engine):
    file = tmp_path / "skep.toml"
    file.write_text(f'[gateway]\nport = 0\n[[serve]]\nmodel = "a"\nengine = "{engine}"\n')
    done = skep("up", "--config", file)
    assert isinstance(done.exception, UserError)
    assert f"there is no engine `{engine}`" in str(done.exception)


def test_a_clock_that_is_not_published_is_null(programs):
    rows = {row["name"]: row for row in json.loads(skep("presets", "--json").stdout)}
    assert "which clock is not said" in rows["qwen-27b-b70"]["published"][0]["note"]
    assert rows["qwen-27b-b70"]["published"][0]["clock"] is None


@pytest.mark.parametrize("extra", ['["--port", "1"]', '["--port=1"]', '["--host", "10.0.0.1"]'])
def test_extra_flags_that_skep_gives_itself_are_refused(programs, tmp_path, extra):
    file = tmp_path / "mine.toml"
    file.write_text(f"{MINE}extra = {extra}\n[options]\ntp = 2\n")
    assert "which skep itself says" in str(skep("presets", "check", file).exception)


@pytest.mark.parametrize("cards", [True, False])
def test_a_preset_on_other_cards_than_its_own_says_that_its_figures_do_not_apply(programs, cards):
    if cards:
        (programs / "nvidia-smi").write_text(SMI)
        (programs / "nvidia-smi").chmod(0o755)
    found = preset("gpt-oss-20b-4090", programs / "none")
    said = about_preset(found, serve_of(found))
    assert any(line.startswith("warning: ") and "rtx-4090" in line for line in said)
