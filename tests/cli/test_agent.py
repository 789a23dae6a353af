"""`skep agent`: stand-ins for the agents write down how they were started; configuration files are
real.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from hive_client import answering
from in_process import call
from test_read_only_folders import read_only_way

from skep.clients.catalog import clients

NAMES = tuple(clients())
SEEN = "seen.json"
STAND_IN = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
Path(os.environ["SEEN"]).write_text(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ)}}))
"""


def serving(**facts):
    """Stand for an endpoint with one model, as vLLM and skep tell of it; gives its URL."""
    entry = {"id": "fake-model", "object": "model", **facts}
    return answering(
        200, json.dumps({"object": "list", "data": [entry]}).encode(), "application/json"
    )


@pytest.fixture(scope="module")
def url():
    with serving(max_model_len=65536, skep={"slots": 4}) as (address, _):
        yield address


@pytest.fixture
def home(paths, env, tmp_path, monkeypatch):
    """A home of its own with every agent on PATH; nobody's settings are found elsewhere."""
    folder = tmp_path / "home"
    (folder / "bin").mkdir(parents=True)
    for name in NAMES:
        program = folder / "bin" / clients()[name].program
        program.write_text(STAND_IN)
        program.chmod(0o755)
    mine = {
        "HOME": str(folder),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SEEN": str(tmp_path / SEEN),
    }
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "QWEN_HOME",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def started(home, tmp_path):
    """Start an agent as a person does, and give what its stand-in saw and what skep printed."""

    def run(*words, **variables):
        argv = [sys.executable, "-m", "skep", "agent", *map(str, words)]
        done = subprocess.run(
            argv,
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / SEEN).read_text()), done.stderr

    return run


def test_claude_code_starts_against_what_runs_here_with_models_window_and_limits(
    skep, home, started, configure, up
):
    configure({"slots": 3, "context": 65536})
    ready = up(SKEP_API_KEY="sekret")
    environment, printed = started(
        "claude", "--", "-p", "hi there", SKEP_API_KEY="sekret", ANTHROPIC_API_KEY="other"
    )
    env = environment["env"]
    expected = {
        "ANTHROPIC_API_KEY": None,
        "ANTHROPIC_BASE_URL": ready["url"],
        "ANTHROPIC_AUTH_TOKEN": "sekret",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16384",
        "CLAUDE_CODE_MAX_TOOL_USE_CONCURRENCY": "3",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_FORCE_IDLE_TIMEOUT": "0",
        "ANTHROPIC_CUSTOM_HEADERS": "x-skep-max-wait: 1h",
    }
    models = [
        env[name]
        for name in env
        if name.endswith("_MODEL") and name.startswith(("ANTHROPIC_", "CLAUDE_"))
    ]
    assert environment["argv"] == ["-p", "hi there"]
    assert {name: env.get(name) for name in expected} == expected
    assert models == ["fake-model"] * 6
    assert f"Claude Code uses fake-model at {ready['url']}" in printed


@pytest.mark.parametrize("name", NAMES)
def test_every_agent_and_a_shell_are_told_url_model_key_and_window(
    name, home, started, url, tmp_path
):
    (tmp_path / "w").mkdir()
    environment, _ = started(
        name, "--url", url, "--key-env", "MY_KEY", "--", "say hi", MY_KEY="se kret"
    )
    printed = call("agent", name, "--url", url, "--print", "--", "say hi", check=0).out
    document = call("agent", name, "--url", url, "--json", "--", "say hi", check=0).json
    env = {key: environment["env"][key] for key in document["env"]}
    settings = json.dumps([environment["argv"], env, read_all(document["files"])])
    for fact in (url.removeprefix("http://"), "fake-model", "se kret"):
        assert fact in settings, fact
    assert name == "aider" or "65536" in settings
    assert environment["argv"][-1] == "say hi"
    (tmp_path / SEEN).unlink()
    subprocess.run(
        ["sh", "-c", printed], env=dict(os.environ), cwd=tmp_path, check=True, timeout=60
    )
    again = json.loads((tmp_path / SEEN).read_text())
    assert again["argv"] == environment["argv"]
    for key in document["env"].keys() - {"SKEP_AGENT_SESSION"}:
        assert again["env"][key].replace("none", "se kret") == environment["env"][key].replace(
            "none", "se kret"
        ), key


def read_all(files):
    return [Path(path).read_text() for path in files]


@pytest.mark.parametrize("name", NAMES)
def test_a_key_is_shown_as_the_name_of_its_variable(name, home, url, monkeypatch, tmp_path):
    monkeypatch.setenv("SKEP_API_KEY", "sekret")
    printed = call("agent", name, "--url", url, "--print", check=0).out
    assert "sekret" not in printed
    assert "sekret" not in call("agent", name, "--url", url, "--json", check=0).out
    subprocess.run(
        ["sh", "-c", printed], env=dict(os.environ), cwd=tmp_path, check=True, timeout=60
    )
    environment = json.loads((tmp_path / SEEN).read_text())
    document = call("agent", name, "--url", url, "--json", check=0).json
    settings = [environment["env"][key] for key in document["env"]] + read_all(document["files"])
    assert any("sekret" in text for text in settings)
    # Every user sees the arguments of a process.
    assert not any("sekret" in word for word in environment["argv"])


def test_what_is_not_known_is_left_out_and_said(home, started):
    with serving() as (plain, _):
        environment, printed = started("claude", "--url", plain)
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in environment["env"]
    assert "does not tell the context" in printed


def test_a_context_that_cannot_hold_the_agents_own_prompt_is_said(home, started):
    with serving(meta={"n_ctx": 16384}) as (small, _):
        _, printed = started("claude", "--url", small)
    assert (
        "warning: fake-model has 16,384 tokens of context; Claude Code needs some 49,152"
        in printed
    )


def test_agents_are_listed_with_what_they_speak_and_what_installs_them(home):
    (home / "bin" / "codex").unlink()
    rows = {row["name"]: row for row in call("agent", "--json", check=0).json}
    assert tuple(rows) == NAMES
    assert rows["claude"]["path"] == str(home / "bin" / "claude")
    assert (rows["codex"]["path"], rows["codex"]["install"]) == (
        None,
        "npm install -g @openai/codex",
    )
    listed = call("agent", check=0).out
    assert "/v1/responses" in listed
    assert "not installed: npm install -g @openai/codex" in listed


def refused(*words):
    done = call("agent", *words)
    assert done.error is not None, done.out
    assert "\n" not in done.error.message
    return f"{done.error.message}\n{done.error.hint}"


def test_what_cannot_be_started_is_one_line_with_what_to_do(home, url, configure):
    assert "did you mean `claude`?" in refused("cluade")
    assert "skep knows claude, codex, opencode" in refused("emacs")
    assert "contradict each other" in refused("claude", "--print", "--write")
    (home / "bin" / "pi").unlink()
    error = refused("pi", "--url", url)
    assert (
        error
        == "pi is not installed: there is no `pi`\nnpm install -g @mariozechner/pi-coding-agent"
    )
    assert "nothing" in refused("claude", "--undo")
    assert "stand behind `--`" in refused("claude", "-p", "hi")
    assert "does not serve `other`" in refused("claude", "--url", url, "--model", "other")


def test_without_a_deployment_it_says_how_to_start_one(home, monkeypatch):
    monkeypatch.setattr("skep.swarm.address.DEFAULT_PORT", 9)
    error = refused("claude")
    assert error.startswith("no deployment runs here")
    assert "`skep up -d` starts one" in error


def test_of_several_models_one_has_to_be_named(skep, home, started, configure, up):
    configure({"model": "large"}, {"model": "small"})
    ready = up()
    assert "serves 2 models: large, small" in refused("claude", "--url", ready["url"])
    environment, _ = started("claude", "--model", "small")
    assert environment["env"]["ANTHROPIC_MODEL"] == "small"


# Configuration files of the agents

CLAUDE = (
    '{\n  // mine\n  "permissions": { "allow": ["Bash(ls)"] },\n  "env": {\n    "FOO": "1",\n  '
    "},\n}\n"
)
CODEX = '# mine\nmodel = "gpt-5" # best\n\n[mcp_servers.x]\ncommand = "a#b"\n'
GOOSE = "# mine\nGOOSE_MODEL: gpt-4o # best\nextensions:\n  developer:\n    enabled: true\n"
FILES = {
    "claude": (".claude/settings.json", CLAUDE),
    "codex": (".codex/config.toml", CODEX),
    "goose": ("../config/goose/config.yaml", GOOSE),
}


def write_file(home, name, text=None):
    path = (home / FILES[name][0]).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILES[name][1] if text is None else text)
    return path


@pytest.fixture
def merged(home, url, monkeypatch):
    """Let skep write into the file of an agent; give its path."""
    monkeypatch.setenv("SKEP_API_KEY", "sekret")

    def write(name):
        path = write_file(home, name)
        call("agent", name, "--write", "--url", url, check=0)
        return path

    return write


def test_settings_are_merged_into_json_and_what_else_is_in_the_file_stays(merged, url):
    path = merged("claude")
    text = path.read_text()
    assert text.startswith(
        '{\n  // mine\n  "permissions": { "allow": ["Bash(ls)"] },\n  "env": {\n    "FOO": "1",\n'
    )
    assert f'\n    "ANTHROPIC_BASE_URL": "{url}",\n' in text
    assert '"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536"' in text


def test_a_file_with_a_key_in_it_is_for_its_user_alone(merged):
    assert merged("claude").stat().st_mode & 0o077 == 0


def test_settings_are_merged_into_toml_and_what_else_is_in_the_file_stays(merged, url):
    text = merged("codex").read_text()
    values = tomllib.loads(text)
    assert text.startswith('# mine\nmodel = "fake-model" # best\n')
    assert values["mcp_servers"] == {"x": {"command": "a#b"}}
    assert values["model_providers"]["skep"]["base_url"] == f"{url}/v1"
    assert values["agents"]["max_threads"] == 4


def test_settings_are_merged_into_yaml_and_what_else_is_in_the_file_stays(merged, url):
    values = yaml.safe_load(merged("goose").read_text())
    assert values["extensions"] == {"developer": {"enabled": True}}
    assert values["OPENAI_HOST"] == url


def settings_below(folder):
    """Return the files of agents: not skep's own, and not the stand-ins."""
    others = {"bin", "state", "hf"}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and others.isdisjoint(path.relative_to(folder).parts)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_taken_out_byte_by_byte(name, home, url):
    text = FILES[name][1] if name in FILES else None
    before = write_file(home, name) if text else None
    call("agent", name, "--write", "--url", url, check=0)
    assert any("fake-model" in path.read_text() for path in settings_below(home.parent))
    call("agent", name, "--undo", check=0)
    assert settings_below(home.parent) == ([before] if before else [])
    assert before is None or before.read_text() == text
    assert "nothing" in refused(name, "--undo")


@pytest.mark.parametrize("name", FILES)
def test_undo_keeps_later_changes_and_restores_what_was_before_the_first_write(name, home, url):
    path = write_file(home, name)
    call("agent", name, "--write", "--url", url, check=0)
    change = {
        "claude": lambda text: text.replace('"FOO": "1"', '"FOO": "2"'),
        "codex": lambda text: text.replace("a#b", "c"),
        "goose": lambda text: text.replace("enabled: true", "enabled: false"),
    }[name]
    path.write_text(change(path.read_text()))
    call("agent", name, "--write", "--url", f"{url}/v1", check=0)
    call("agent", name, "--undo", check=0)
    text = path.read_text()
    assert url not in text
    assert "fake-model" not in text
    reader = {"claude": json.loads, "codex": tomllib.loads, "goose": yaml.safe_load}[name]
    expected = change(FILES[name][1])
    if name == "claude":
        assert '"FOO": "2",' in text
        assert "// mine" in text
    else:
        assert reader(text) == reader(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("claude", '{"env": '),
        ("claude", '{"env": "a text where skep needs a table"}'),
        ("claude", "[" * 100_000),
        ("claude", "[1]"),
        ("codex", "model = \n"),
        ("codex", 'model = """\nof several\nlines"""\n'),
        ("goose", "GOOSE_MODEL: [\n"),
        ("goose", "GOOSE_MODEL:\n  of: two\n"),
    ],
)
def test_a_file_that_is_broken_or_cannot_be_changed_safely_is_one_line_and_stays(
    name, text, home, url
):
    path = write_file(home, name, text)
    error = refused(name, "--write", "--url", url)
    assert str(path) in error
    assert "unchanged" in error
    assert path.read_text() == text
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_of_two_files_none_is_written_where_one_is_broken(home, url):
    settings = home / ".pi" / "agent" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text("{")
    assert str(settings) in refused("pi", "--write", "--url", url)
    assert [path.name for path in settings.parent.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_read_only_folder_is_one_line_and_nothing_is_half_written(name, home, url, tmp_path):
    path = write_file(home, name)
    way = read_only_way(path.parent)
    argv = [*way, sys.executable, "-m", "skep", "agent", name, "--write", "--url", url]
    done = subprocess.run(
        argv, env=dict(os.environ), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    path.parent.chmod(0o755)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert str(path) in errors[0]
    assert path.read_text() == FILES[name][1]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_undo_brings_back_a_file_that_was_removed_since(home, url):
    path = write_file(home, "codex")
    call("agent", "codex", "--write", "--url", url, check=0)
    path.unlink()
    call("agent", "codex", "--undo", check=0)
    assert path.read_text() == CODEX


def test_a_model_is_told_by_its_name_whatever_is_in_it(home, started):
    with serving(id="a {key} 'b' $HOME") as (address, _):
        environment, _ = started("claude", "--url", address)
        printed = call("agent", "qwen", "--url", address, "--print", check=0).out
        subprocess.run(
            ["sh", "-c", printed], env=dict(os.environ), cwd=home, check=True, timeout=60
        )
    assert environment["env"]["ANTHROPIC_MODEL"] == "a {key} 'b' $HOME"
    shell = json.loads(Path(os.environ["SEEN"]).read_text())["env"]
    assert shell["OPENAI_MODEL"] == "a {key} 'b' $HOME"
    settings = json.loads(Path(shell["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).read_text())
    assert settings["model"]["name"] == "a {key} 'b' $HOME"
    with serving(id="a\x1b[2J") as (address, _):
        assert "cannot be printed" in refused("claude", "--url", address)


def test_a_link_to_a_file_stays_a_link(home, url):
    real = home / "dotfiles.json"
    real.write_text("{}")
    link = home / ".claude" / "settings.json"
    link.parent.mkdir()
    link.symlink_to(real)
    call("agent", "claude", "--write", "--url", url, check=0)
    assert link.is_symlink()
    assert "ANTHROPIC_MODEL" in real.read_text()
    call("agent", "claude", "--undo", check=0)
    assert (link.is_symlink(), real.read_text()) == (True, "{}")
