"""The command line itself: its tree, what is gone from it, tables; and commands too small for a
module of their own.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from fake_programs import SMI
from in_process import call, refused

from skep.cli.main import (
    ALIASES,
    GROUPS,
    NAMES,
    PART_OF,
    PARTS,
    plain_words,
    removed_options,
    tree_of,
)
from skep.host.checks import CheckResult, HostFinding
from skep.report.hive_text import print_findings
from skep.report.terminal import print_table

WHOLE = tree_of(PARTS).commands
GONE = [
    *((command.split(), message) for command, message in NAMES["removed"].items()),
    *(
        ([*command.split(), name], hint)
        for command, hints in removed_options().items()
        for name, hint in hints.items()
    ),
]


def below(command):
    return set(getattr(command, "commands", ()))


def test_every_command_is_in_the_tree_and_in_the_module_that_is_loaded_for_it():
    assert set(PART_OF) == set(WHOLE)
    for name in WHOLE:
        module = import_module(f"skep.cli.{PART_OF[name]}")
        source = inspect.getsource(module).replace("group(\n    ", "group(")
        assert hasattr(module, name) or f'group("{name}"' in source, name


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_skep_alone_prints_its_help(words):
    assert call(*words, check=0).out == call("help", check=0).out


def test_help_is_the_20_commands_of_daily_use_in_groups_on_80_columns():
    lines = call("help", check=0).out.splitlines()
    assert [line[:-1] for line in lines if line.endswith(":")] == [*GROUPS][:-1]
    assert sum(line.startswith("  ") and line[2].islower() for line in lines[4:]) == 20
    assert max(map(len, lines)) <= 80


def test_help_shows_every_command_on_demand():
    page = call("help", "--all").out
    assert [name for name in PART_OF if f"\n  {name} " not in page] == []


def test_help_of_a_command_is_what_the_command_says_of_itself():
    assert call("help", "model", "load").out == call("model", "load", "--help").out
    assert call("model").out == call("model", "--help").out


def test_help_has_pages_of_the_documentation():
    assert call("help", "errors", check=0).out.startswith("# ")
    assert "errors" in call("help", "topics", check=0).out.splitlines()


def test_help_of_a_command_goes_before_the_page_of_that_name():
    assert call("help", "plan", check=0).out.startswith("Usage: skep plan")
    assert call("help", "plan", "--page", check=0).out.startswith("# ")


def test_help_is_printed_without_loading_the_parser_of_commands():
    """That would break the goal of at most 0.2 s, which benchmarks/startup.py measures."""
    code = (
        "import sys, skep.cli.main as cli; cli.run(['--help']); sys.exit('click' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_another_name_is_a_command_of_the_tree(old):
    first, *rest = plain_words(old.split())
    assert not rest or rest[0] in below(WHOLE[first])
    assert call(*old.split(), "--help", check=0).out.startswith(
        f"Usage: skep {' '.join([first, *rest])}"
    )


@pytest.mark.parametrize("name", sorted(NAMES["options"]))
def test_another_word_for_an_option_is_one_that_the_command_has(name):
    leaves = [*getattr(WHOLE[name], "commands", {}).values()] or [WHOLE[name]]
    all_options = {option for leaf in leaves for param in leaf.params for option in param.opts}
    assert set(NAMES["options"][name].values()) <= all_options
    assert not all_options & set(NAMES["options"][name])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("swarm ls", "swarm list"),
        ("tune rm x", "tune remove x"),
        ("presets ls", "presets list"),
        ("bench sweep --max-tokens 8 --num-prompts=4", "bench sweep --output-tokens 8 --tasks=4"),
        ("bench sweep --max-concurrency 8", "bench sweep --concurrency 8"),
        ("plan m --agents 4 -tp 2", "plan m --concurrency 4 --tp 2"),
        ("serve m --gpu-memory-utilization 0.9", "up m --memory-share 0.9"),
        ("swarm run t --agents 4 -- --agents", "swarm run t --concurrency 4 -- --agents"),
        ("calibrations show last", "calibrate show last"),
    ],
)
def test_words_of_vllm_and_of_earlier_versions_are_understood(typed, meant):
    assert plain_words(typed.split()) == meant.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plam", "there is no command `plam` | did you mean `skep plan`?"),
        ("plan", "missing argument `MODEL` | `skep plan --help` explains the command"),
        ("ps --jsn", "no such option `--jsn`"),
        ("tune", "missing argument `PRESET|MODEL` | `skep tune --help` explains the command"),
        ("up --concurrency 4", "--concurrency is for a model named on the command line"),
        ("bench nosuch", "no such command `nosuch` | `skep bench --help` explains the command"),
        ("up --slots many", "--slots `many` should be a whole number"),
        ("up m --memory-share nan", "--memory-share `nan` should be at least 0.01 and at most 1"),
    ],
)
def test_wrong_usage_is_one_line_with_a_hint(paths, words, message):
    assert message in refused(*words.split())


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("chat", "http://127.0.0.1:8401/chat"),
        ("run", "`skep swarm run FILE`"),
        ("list", "`skep runs`"),
        ("search", "`skep catalog models`"),
        ("update", "`git pull`"),
    ],
)
def test_a_command_known_from_other_tools_names_what_skep_has_instead(word, hint):
    error = refused(word)
    assert error.startswith(f"there is no command `{word}` | ")
    assert hint in error
    assert "did you mean" not in error


def test_every_command_in_a_hint_for_other_tools_exists():
    for hint in NAMES["expected"].values():
        for line in re.findall(r"`skep ([^`]+)`", hint):
            first, *rest = plain_words(line.split())
            command = WHOLE[first]
            is_argument = not rest or rest[0].isupper() or "/" in rest[0]
            assert is_argument or rest[0] in below(command), line


@pytest.mark.parametrize("name", ["tune", "runs", "calibrate", "export"])
def test_a_group_shows_the_options_of_the_command_that_is_meant_without_a_name(name):
    page = call(name, "--help").out
    inner = call(name, tree_of(PARTS).commands[name].default, "--help").out
    assert {word for word in inner.split() if word.startswith("--")} <= set(page.split())
    assert "Commands:" in page


def carried_out():
    """What each `command(..., runs=PATH)` names, and the parameters of the function that it is put
    on.
    """
    for module in (import_module(f"skep.cli.{part}") for part in PARTS):
        for path, name in re.findall(
            r'runs="([\w.]+)",?\s*\)\s*(?:def |\()(\w+)', inspect.getsource(module)
        ):
            yield path, [*inspect.signature(getattr(module, name)).parameters]


@pytest.mark.parametrize(("path", "names"), sorted(carried_out()))
def test_what_carries_a_command_out_takes_its_parameters(path, names):
    module, _, name = path.partition(".")
    inspect.signature(getattr(import_module(f"skep.cli.{module}"), name)).bind(
        **dict.fromkeys(names)
    )


@pytest.mark.parametrize(("words", "message"), GONE, ids=[" ".join(words) for words, _ in GONE])
def test_what_is_gone_says_in_one_line_what_to_use_instead(skep, words, message):
    done = skep(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_brackets_in_a_cell_are_no_markup(capsys):
    """A model or a run may be called `[/x]`; such a cell once ended the command with a
    traceback.
    """
    print_table("NAME|>C", list, [["[/x] [bold]model[/bold]", "1"]])
    assert "[/x] [bold]model[/bold]" in capsys.readouterr().out


def test_doctor_has_a_verdict_for_every_check_and_a_hint_for_every_trouble(paths):
    done = call("doctor", "--json")
    findings = done.json["findings"]
    checks = {"python", "cpu", "memory", "gpu", "open files", "embedded engine", "disk"}
    assert checks <= {finding["check"] for finding in findings}
    assert all(finding["hint"] for finding in findings if finding["verdict"] != "ok")
    assert done.code == (1 if any(finding["verdict"] == "problem" for finding in findings) else 0)
    assert "python" in call("doctor").out


NO_ENGINES = {"PATH": "/usr/bin:/bin"}


def test_doctor_ends_with_what_there_is_to_do_and_calls_no_missing_engine_ok(skep, tmp_path):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    cards = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    findings = json.loads(skep("doctor", "--json", **cards).stdout)["findings"]
    verdicts = {finding["check"]: finding["verdict"] for finding in findings}
    assert {verdicts[name] for name in ("vllm", "sglang", "llamacpp")} == {"absent"}
    assert verdicts["engine"] == "warning"
    to_do = [check for check, verdict in verdicts.items() if verdict in ("warning", "problem")]
    count_in_words = "1 thing" if len(to_do) == 1 else f"{len(to_do)} things"
    last = skep("doctor", **cards).stdout.splitlines()[-1]
    assert last == f"{count_in_words} to do: {', '.join(to_do)}"


def test_a_missing_engine_is_nothing_to_do_without_cards(skep):
    findings = json.loads(skep("doctor", "--json", **NO_ENGINES).stdout)["findings"]
    assert "engine" not in [finding["check"] for finding in findings]
    assert [finding["hint"] for finding in findings if finding["verdict"] == "absent"] != []


def test_doctor_says_so_where_there_is_nothing_to_do(capsys):
    python = HostFinding("python", CheckResult.OK, "3.11")
    print_findings([python, HostFinding("vllm", CheckResult.ABSENT, "not installed")])
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to do"


def test_a_model_that_cannot_be_pulled_is_one_clear_line(paths, tmp_path, monkeypatch):
    unknown = refused("pull", "smollm3")
    assert "smollm3" in unknown
    assert "smollm2-135m" in unknown
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    message = refused("pull", "smollm2-135m", code=1)
    assert str(tmp_path / "file") in message
    assert "XDG_CACHE_HOME" in message


def test_no_network_on_first_use_is_one_clear_line(skep, tmp_path):
    empty = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_FIND_LINKS": str(tmp_path)}
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    done = skep("up", "--embedded", "-d", "--port", "0", check=1, **empty, **offline)
    assert done.stderr.count("error:") == 1
    assert "hint:" in done.stderr
    assert not list((tmp_path / "cache").rglob("*.gguf"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("start --address 0.0.0.0", "`0.0.0.0` is not the address of one network interface"),
        ("start --address head", "`head` is not an IPv4 address"),
        ("start --port 80", "port 80 is not possible"),
        ("join auto", "`auto` is not the address of a head node"),
        ("join somewhere", "`somewhere` is not the address of a head node"),
        ("join ray://10.0.0.1:6379", "`ray://10.0.0.1:6379` is not the address of a head node"),
        ("join 10.0.0.1:99999", "`10.0.0.1:99999` is not the address of a head node"),
        ("join 10.0.0.1:6379 --token-file nowhere", "`nowhere` cannot be read"),
        ("token", "this machine has no cluster token"),
    ],
)
def test_what_cannot_be_done_with_a_cluster_is_one_line_with_a_hint(paths, words, expected):
    message, _, hint = refused("cluster", *words.split()).partition(" | ")
    assert expected in message
    assert hint != "None"


def test_without_a_cluster_there_is_nothing_to_stop(paths):
    assert "skep has not started Ray on this machine" in call("cluster", "stop", check=0).err
