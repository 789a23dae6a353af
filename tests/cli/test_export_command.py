"""`skep export` as a user runs it: printed, written, and what it refuses."""

import stat

import pytest
import typer
from typer.testing import CliRunner

from skep.cli import export
from skep.errors import UserError

OWN = """
title = "Mine"
engine = "vllm"
model = "qwen3-8b"
checkpoint = "Qwen/Qwen3-8B-AWQ"
hardware = "2x rtx-3090"
source = "my own"
slots = 3
replicas = 2
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "skep" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(OWN)
    app = typer.Typer()
    app.callback()(lambda: None)
    export.register(app)

    def invoke(*args):
        done = CliRunner().invoke(app, ["export", *map(str, args)])
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    return invoke


@pytest.mark.parametrize("form", ["shell", "docker", "compose", "systemd"])
def test_a_preset_of_ones_own_is_printed_in_every_form(run, form):
    text = run("mine", "--as", form, "--port", "9000", "--engine-port", "9100")
    assert "9000" in text
    assert "9101" in text


def test_a_script_is_written_to_be_run(run, tmp_path):
    file = tmp_path / "start.sh"
    assert run("mine", "--as", "shell", "-o", file) == ""
    assert file.read_text().startswith("#!")
    assert file.stat().st_mode & stat.S_IXUSR


def test_a_model_on_cards_is_exported_as_it_is_planned(run):
    text = run("qwen3-8b", "--gpu", "rtx-3090", "--as", "docker")
    assert "docker run" in text
    assert "CHECKPOINT" in text or "MODELS" in text
    assert "skep export qwen3-8b --gpu rtx-3090 --as docker" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("mine", "--as", "kubernetes"), "--as `kubernetes` is unknown"),
        (("mine", "--as", "nginx"), "--as `nginx` is unknown: choose shell, docker, compose or systemd"),
        (("mnie", "--as", "shell"), "no preset is called `mnie`"),
        (("qwen3-8b", "--as", "shell"), "is a model, not a preset"),
        (("mine", "--as", "shell", "--port", "8500"), "leaves no room"),
        (("mine", "--as", "shell", "-o", "/nonexistent/x"), "does not exist"),
        (("qwen3-8b", "--gpu", "rtx-nothing", "--as", "shell"), "rtx-nothing"),
    ],
)
def test_a_wrong_word_is_said_in_one_line(run, args, said):
    with pytest.raises(UserError, match=said):
        run(*args)
