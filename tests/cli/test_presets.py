"""`skep presets` and `skep export` as a user runs them."""

import shutil
import stat
from pathlib import Path

import pytest
from in_process import call, refused

from skep.catalog.presets import Published
from skep.config.presets import presets_folder, shipped_presets
from skep.report.catalog import IN_DOCS, PRESET_COLUMNS
from skep.report.columns import markdown_table, record_lines

NAME = "qwen3.6-27b-2x3090-replicas"


MINE = """title = "Mine"
engine = "vllm"
model = "qwen3.6-27b"
checkpoint = "org/x"
hardware = "2x rtx-3090"
source = "me"
slots = 4
"""


@pytest.fixture
def folder(paths):
    return presets_folder(paths)


@pytest.fixture(autouse=True)
def _own_folders(paths, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


def run(*words):
    return call("presets", *words, check=0)


def test_the_list_has_every_preset_with_its_best_figure_in_80_columns():
    lines = run().out.splitlines()
    assert lines[0].split() == [
        "NAME",
        "ENGINE",
        "MODEL",
        "HARDWARE",
        "BEST",
        "PUBLISHED",
        "SOURCE",
    ]
    assert {line.split()[0] for line in lines[1:]} == {
        name for name, shipped in shipped_presets().items() if not shipped.history
    }
    (line,) = (line for line in lines if line.startswith(NAME))
    assert "225 tok/s at C=4" in line
    assert "(own)" not in line
    presets = list(shipped_presets().values())
    narrow = record_lines(PRESET_COLUMNS, presets, 80)
    assert narrow[0].split() == ["NAME", "ENGINE", "BEST", "PUBLISHED"]
    assert all(len(line) <= 80 for line in narrow)
    assert "SOURCE" in record_lines(PRESET_COLUMNS, presets, 400)[0]


def test_the_list_as_json_has_exactly_its_keys_and_the_page_the_list_of_the_files():
    assert len(run("--json").json) < len(shipped_presets())
    rows = run("list", "--all", "--json").json
    assert len(rows) == len(shipped_presets())
    fields = [*Published.__struct_fields__]
    for row in rows:
        assert list(row) == ["name", "engine", "model", "hardware", "published", "source"]
        assert all(list(figure) == fields for figure in row["published"])
    (row,) = (row for row in rows if row["name"] == NAME)
    assert row["published"][2] | {"needs": []} == {
        "tok_s": 225.4,
        "metric": "output",
        "concurrency": 4,
        "input_tokens": 1024,
        "output_tokens": 1024,
        "clock": "client",
        "engine_version": "0.19.2 / dev205",
        "ttft_ms": 1440.0,
        "tpot_ms": 15.1,
        "per_task_tok_s": None,
        "runs": "16 prompts in the benchmark command the author gives",
        "needs": [],
        "note": None,
    }
    page = Path(__file__).parent.parent.parent / "docs" / "presets.md"
    assert page.read_text().endswith(markdown_table(IN_DOCS, list(shipped_presets().values())))


@pytest.mark.parametrize(
    "words",
    [
        "2x rtx-3090, pcie",
        "Lorbus/Qwen3.6-27B-int4-AutoRound",
        "the Genesis patches",
        "driver 575 or newer",
        "GENESIS_ENABLE_P82=1",
        "mtp:3",
        "225.4",
        "least_conn",
        "4: 2 replicas of 2 slots",
        f"skep up {NAME}",
        f"skep export {NAME} --as docker",
        "skep bench sweep -c 1,2,4,8 --prompt-tokens 1024 --output-tokens 1024 --fixed-output\n",
    ],
)
def test_a_preset_is_shown_with_what_it_needs_and_gives_and_how_to_start_it(words):
    assert words in run("show", NAME).out


def test_a_preset_as_json_has_its_slots_its_marks_and_how_to_start_it():
    document = run("show", NAME, "--json").json
    assert (document["capacity"], document["own"], document["stand_in"]) == (4, False, False)
    assert document["next"][0] == f"skep up {NAME}"


def test_a_preset_as_json_has_its_options_environment_and_container():
    document = run("show", NAME, "--json").json
    assert document["options"]["draft"] == {"method": "mtp", "depth": 3, "model": None}
    assert document["env"]["NCCL_P2P_DISABLE"] == "1"
    assert document["container"]["before"][1] == "python3 -m vllm._genesis.patches.apply_all"


def test_a_checkpoint_that_the_source_does_not_name_is_marked_as_chosen_by_skep():
    page = run("show", "gemma-4-31b-4x3090").out
    assert "chosen by skep: the author names none" in page
    assert (
        "\nThe source does not name its checkpoint: skep uses "
        "cyankiwi/gemma-4-31B-it-AWQ-4bit in its place."
    ) in page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gemma-4-31b-4x3090", "lengths not said; the engine's clock; version 0.19.1"),
        ("qwen-27b-b70", "clock not said; version not said"),
        (NAME, "; the client's clock; version 0.19.2 / dev205"),
    ],
)
def test_published_figures_say_their_clock_and_version_or_that_the_source_does_not(name, words):
    assert words in run("show", name).out


def test_a_clock_that_the_source_does_not_say_is_null_and_noted_in_the_document():
    (figure,) = (
        row["published"][0] for row in run("--json").json if row["name"] == "qwen-27b-b70"
    )
    assert "which clock is not said" in figure["note"]
    assert figure["clock"] is None


@pytest.fixture
def copy(paths):
    """The file of a preset of one's own, copied from one that is shipped."""
    return Path(run("new", "my-27b", "--from", NAME).out.strip())


def test_a_copy_is_written_into_the_folder_of_own_presets_and_names_its_origin(folder, copy):
    assert copy == folder / "my-27b.toml"
    assert copy.read_text().startswith(f"# Copied from `{NAME}`")


def test_a_preset_of_ones_own_is_listed_and_shown_as_such(copy):
    assert "my-27b (own)" in run().out
    assert f"Your own, from {copy}" in run("show", "my-27b").out


@pytest.fixture
def edited(copy):
    copy.write_text(copy.read_text().replace("slots = 2", "slots = 3"))
    return copy


def test_a_copy_does_not_overwrite_a_preset_of_ones_own(edited):
    assert "already exists" in refused("presets", "new", "my-27b", "--from", "gemma-4-31b-2x3090")
    assert "slots = 3" in edited.read_text()


@pytest.mark.usefixtures("edited")
def test_a_preset_of_ones_own_can_be_copied():
    assert "slots = 3" in Path(run("new", "another", "--from", "my-27b").out.strip()).read_text()


def test_the_name_of_a_copy_is_no_path():
    message = refused("presets", "new", "../elsewhere", "--from", NAME)
    assert "is not a valid preset name" in message


def test_a_file_in_another_folder_is_checked_and_its_place_is_told(edited, tmp_path):
    shutil.copy(edited, tmp_path / "elsewhere.toml")
    checked = run("check", tmp_path / "elsewhere.toml")
    assert "is a valid preset" in checked.out
    assert "put it into" in checked.err


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    message = refused("presets", "show", "gemma-4-31b-4x3091")
    assert "no preset is called `gemma-4-31b-4x3091`" in message
    assert "`gemma-4-31b-4x3090`" in message


@pytest.mark.parametrize(
    "key",
    [
        "title",
        "source",
        "date",
        "extra.0",
        "notes.0",
        "env.A",
        "need.0.what",
        "published.0.note",
        "options.quant",
    ],
)
@pytest.mark.parametrize(
    ("characters", "named"),
    [
        ("\\u001b]0;owned\\u0007", "U+001B"),
        ("\\u001b[31m", "U+001B"),
        ("\\u001b[2J", "U+001B"),
        ("\\u009b2J", "U+009B"),
        ("\u202e", "U+202E"),
        ("\\u2066", "U+2066"),
        ("\\u200b", "U+200B"),
        ("\\u2028", "U+2028"),
        ("\\r", "U+000D"),
        ("\\b", "U+0008"),
    ],
    ids=[
        "title of the window",
        "colour",
        "clear",
        "short clear",
        "bidi",
        "isolate",
        "no width",
        "line",
        "return",
        "back",
    ],
)
def test_a_preset_cannot_give_orders_to_the_terminal(folder, key, characters, named):
    """A preset is passed on: its title could rename the window, clear the screen or turn a line
    around.
    """
    lines = {
        "extra.0": "extra = [{}]",
        "notes.0": "notes = [{}]",
        "env.A": "[env]\nA = {}",
        "need.0.what": '[[need]]\nid = "a"\nkind = "step"\nwhy = "w"\nwhat = {}',
        "published.0.note": (
            '[[published]]\ntok_s = 1\nmetric = "output"\nconcurrency = 1\nnote = {}'
        ),
        "options.quant": "[options]\nquant = {}",
    }
    figures = "".join(
        line for line in MINE.splitlines(keepends=True) if not line.startswith(f"{key} ")
    )
    folder.mkdir(parents=True)
    line = lines.get(key, f"{key} = {{}}").format(f'"me{characters}"')
    (folder / "mine.toml").write_text(f"{figures}{line}\n")
    for words in (("show", "mine"), ("show", "mine", "--json"), ("check", folder / "mine.toml")):
        error = refused("presets", *words)
        assert f"mine.toml: `{key}` contains the character {named}, which is not printed" in error
        assert "delete it" in error
        assert error.replace("\n", "").isprintable()
    listed = run()
    assert f"left out: {folder / 'mine.toml'}: `{key}`" in listed.err
    assert (listed.out + listed.err).replace("\n", "").isprintable()


def test_a_key_of_a_preset_cannot_give_orders_either(folder):
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(f'{MINE}"\\u001b[2J" = 1\n')
    error = refused("presets", "show", "mine")
    assert "a key contains the character U+001B" in error
    assert error.replace("\n", "").isprintable()


def test_a_preset_may_have_letters_of_every_script(folder):
    folder.mkdir(parents=True)
    title = "\u0645\u06cc\u200c\u062e 模型 é\u00a0✓ 👩\u200d🔬"
    (folder / "mine.toml").write_text(
        MINE.replace("Mine", title) + 'notes = ["one\\ntwo\\tthree"]\n'
    )
    assert title in run("show", "mine").out


def test_a_wrong_file_is_told_by_key_and_hides_no_other(folder):
    """Flags that skep gives itself are wrong, too."""
    folder.mkdir(parents=True)
    for extra in ('["--port", "1"]', '["--port=1"]', '["--host", "10.0.0.1"]'):
        (folder / "mine.toml").write_text(f"{MINE}extra = {extra}\n[options]\ntp = 2\n")
        assert "which skep sets itself" in refused("presets", "check", folder / "mine.toml")
    (folder / "mine.toml").write_text(MINE.replace("engine =", "engin ="))
    (folder / "Bad Name.toml").write_text(MINE)
    message = refused("presets", "check", folder / "mine.toml")
    assert "mine.toml: `engin` is an unknown key | did you mean `engine`?" in message
    done = run()
    assert NAME in done.out
    assert done.err.count("left out: ") == 2
    assert "mine.toml: `engin`" in refused("presets", "show", "mine")
    assert len(run("list", "--all", "--json").json) == len(shipped_presets())


@pytest.fixture
def mine(folder):
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(f"{MINE}replicas = 2\n")


def export(*words):
    return call("export", *words, check=0).out


@pytest.mark.parametrize("form", ["shell", "docker", "compose", "systemd"])
def test_an_own_preset_is_exported_in_every_form_and_its_script_can_be_run(mine, tmp_path, form):
    text = export("mine", "--as", form, "--port", "9000", "--engine-port", "9100")
    assert "9000" in text
    assert "9101" in text
    file = tmp_path / "start"
    assert export("mine", "--as", form, "-o", file) == ""
    runs = bool(file.stat().st_mode & stat.S_IXUSR)
    assert file.read_text().startswith("#!") == runs == (form in ("shell", "docker"))


def test_a_model_on_cards_is_exported_as_it_is_planned():
    text = export("qwen3-8b", "--gpu", "rtx-3090", "--as", "docker")
    assert "docker run" in text
    assert " serve Qwen/Qwen3-8B-AWQ " in text
    assert "skep export qwen3-8b --gpu rtx-3090 --as docker" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("mine", "--as", "kubernetes"), "--as `kubernetes` is unknown"),
        (
            ("mine", "--as", "nginx"),
            "--as `nginx` is unknown: choose shell, docker, compose or systemd",
        ),
        (("mnie", "--as", "shell"), "no preset is called `mnie`"),
        (("qwen3-8b", "--as", "shell"), "is a model, not a preset"),
        (("mine", "--as", "shell", "--port", "8500"), "--engine-port 8500 does not fit"),
        (("mine", "--as", "shell", "-o", "/nonexistent/x"), "does not exist"),
        (("qwen3-8b", "--gpu", "rtx-nothing", "--as", "shell"), "rtx-nothing"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(mine, args, message):
    assert message in refused("export", *args)
