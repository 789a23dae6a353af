"""`skep presets` as a user runs it."""

import dataclasses
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from skep.catalog.presets import Published
from skep.cli.presets import markdown_list, register
from skep.config.presets import shipped_presets
from skep.errors import UserError

NAME = "qwen3.6-27b-2x3090-replicas"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the commands in this process, with a configuration folder of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    app = typer.Typer()
    register(app)

    def go(*args):
        done = CliRunner().invoke(app, ["presets", *map(str, args)])
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done

    return go


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "skep" / "presets"


def test_the_list_has_every_preset_with_its_best_figure(run):
    lines = run().stdout.splitlines()
    assert lines[0].split() == ["NAME", "ENGINE", "MODEL", "HARDWARE", "BEST", "PUBLISHED", "SOURCE"]
    assert {line.split()[0] for line in lines[1:]} == set(shipped_presets())
    (line,) = (line for line in lines if line.startswith(NAME))
    assert "225 tok/s at C=4" in line
    assert "(own)" not in line


def test_the_list_as_json_has_exactly_its_keys(run):
    rows = json.loads(run("--json").stdout)
    assert len(rows) == len(shipped_presets())
    fields = [field.name for field in dataclasses.fields(Published)]
    for row in rows:
        assert list(row) == ["name", "engine", "model", "hardware", "published", "source"]
        assert all(list(figure) == fields for figure in row["published"])
    (row,) = (row for row in rows if row["name"] == NAME)
    assert row["published"][2] | {"needs": []} == {
        "tok_s": 225.4, "metric": "output", "concurrency": 4, "input_tokens": 1024, "output_tokens": 1024,
        "clock": "client", "engine_version": "0.19.2 / dev205", "ttft_ms": 1440.0, "tpot_ms": 15.1,
        "per_task_tok_s": None, "runs": "16 prompts in the benchmark command the author gives", "needs": [],
        "note": None,
    }  # fmt: skip


def test_one_preset_is_shown_with_all_it_wants(run):
    said = run("show", NAME).stdout
    for words in (
        "2x rtx-3090, pcie", "Lorbus/Qwen3.6-27B-int4-AutoRound", "the Genesis patches", "driver 575 or newer",
        "GENESIS_ENABLE_P82=1", "mtp:3", "225.4", "least_conn", "4: 2 replicas of 2 slots",
        f"skep up {NAME}", f"skep export {NAME} --as docker", f"skep bench sweep --against-preset {NAME}",
    ):  # fmt: skip
        assert words in said, words


def test_a_stand_in_is_called_one(run):
    said = run("show", "gemma-4-31b-4x3090").stdout
    assert "the author names none: a stand-in" in said
    assert (
        "\nWhich checkpoint was measured is not published: cyankiwi/gemma-4-31B-it-AWQ-4bit stands in for it." in said
    )


def test_a_terminal_of_80_columns_breaks_no_line_of_the_list(run, capsys):
    from skep.cli.presets import _print_list

    known = list(shipped_presets().values())
    _print_list(known, 80)
    narrow = capsys.readouterr()
    assert narrow.out.splitlines()[0].split() == ["NAME", "ENGINE", "BEST", "PUBLISHED"]
    assert all(len(line) <= 80 for line in narrow.out.splitlines())
    assert "`skep presets show NAME` has the rest" in narrow.err
    _print_list(known, 400)
    wide = capsys.readouterr()
    assert "SOURCE" in wide.out
    assert not wide.err


@pytest.mark.parametrize("name", [NAME, "gemma-4-31b-4x3090", "qwen-27b-b70"])
def test_a_terminal_of_80_columns_breaks_a_preset_between_words_only(name, capsys):
    from skep.cli.presets import _print_preset

    found = shipped_presets()[name]
    _print_preset(found, 80)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in lines)
    _print_preset(found)
    whole = capsys.readouterr().out
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
    assert all(f"\n{place}. " in whole for place in range(1, len(found.published) + 1))
    assert "VALUE" not in whole


def test_a_figure_says_what_is_not_said_of_it(run):
    assert "clock not said; version not said" in run("show", "qwen-27b-b70").stdout
    assert "lengths not said; the engine's clock; version 0.19.1" in run("show", "gemma-4-31b-4x3090").stdout
    assert "; the client's clock; version 0.19.2 / dev205" in run("show", NAME).stdout


def test_one_preset_as_json_is_the_whole_of_it(run):
    document = json.loads(run("show", NAME, "--json").stdout)
    assert (document["capacity"], document["own"], document["stand_in"]) == (4, False, False)
    assert document["options"]["draft"] == {"method": "mtp", "depth": 3, "model": None}
    assert document["env"]["NCCL_P2P_DISABLE"] == "1"
    assert document["container"]["before"][1] == "python3 -m vllm._genesis.patches.apply_all"
    assert document["next"][0] == f"skep up {NAME}"


def test_an_unknown_one_hears_the_nearest(run):
    with pytest.raises(UserError, match="no preset is called `gemma-4-31b-4x3091`") as caught:
        run("show", "gemma-4-31b-4x3091")
    assert "`gemma-4-31b-4x3090`" in caught.value.hint


def test_a_copy_of_ones_own_is_listed_as_such_and_never_overwritten(run, folder):
    path = Path(run("new", "my-27b", "--from", NAME).stdout.strip())
    assert path == folder / "my-27b.toml"
    assert path.read_text().startswith(f"# Begun as a copy of `{NAME}`")
    assert "my-27b (own)" in run().stdout
    assert f"Your own, from {path}" in run("show", "my-27b").stdout
    path.write_text(path.read_text().replace("slots = 2", "slots = 3"))
    with pytest.raises(UserError, match="is there already"):
        run("new", "my-27b", "--from", "gemma-4-31b-2x3090")
    assert "slots = 3" in path.read_text()
    assert "slots = 3" in Path(run("new", "another", "--from", "my-27b").stdout.strip()).read_text()
    with pytest.raises(UserError, match="is no name for a preset"):
        run("new", "../elsewhere", "--from", NAME)


def test_a_valid_file_is_said_to_be_one(run, tmp_path):
    run("new", "mine", "--from", NAME)
    file = tmp_path / "elsewhere.toml"
    file.write_text((tmp_path / "skep" / "presets" / "mine.toml").read_text())
    done = run("check", file)
    assert "is a valid preset" in done.stdout
    assert "put it into" in done.stderr


def test_a_wrong_file_is_told_by_line_and_hides_no_other(run, folder):
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('title = "x"\nengin = "vllm"\n')
    with pytest.raises(UserError, match=r"mine\.toml:2: `engin` is not a key .* `engine`\? \(and 5 more\)"):
        run("check", folder / "mine.toml")
    done = run()
    assert NAME in done.stdout
    assert "left out: " in done.stderr
    assert len(json.loads(run("--json").stdout)) == len(shipped_presets())


def test_the_list_in_the_page_is_the_list_in_the_files():
    page = Path(__file__).parent.parent.parent / "docs" / "presets.md"
    assert page.read_text().endswith(markdown_list(list(shipped_presets().values())))
