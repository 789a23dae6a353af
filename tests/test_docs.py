"""Documentation is held against the product: commands, settings, errors, JSON keys, files it links
to, benchmarks.
"""

import ast
import importlib
import re
import runpy
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from skep.catalog.presets import EngineOptions
from skep.cli.main import PARTS, plain_words, tree_of
from skep.config.load import file_keys, parse_settings
from skep.config.settings import Cluster, GatewaySettings, Monitor, Serve, Settings, Upstream
from skep.gateway.admission_messages import RejectCode
from skep.gateway.error_format import ERRORS
from skep.report.schemas import document_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
]


def commands(command, path=()):
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name, child in children.items():
        yield from commands(
            child, path if name == getattr(command, "default", "") else (*path, name)
        )


def all_leaves(command, path=()):
    children = getattr(command, "commands", {})
    return [leaf for name in children for leaf in all_leaves(children[name], (*path, name))] or [
        (path, command)
    ]


LEAVES = list(commands(tree_of(PARTS)))
ALL_LEAVES = all_leaves(tree_of(PARTS))


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_every_command_says_what_it_does_and_gives_an_example(path, command):
    assert command.help
    assert f"skep {' '.join(path)}" in command.epilog


def test_every_error_code_has_its_heading_and_every_rejection_a_code():
    page = (DOCS / "errors.md").read_text()
    assert [code for code in ERRORS if f"### `{code}`" not in page] == []
    assert {code.value for code in RejectCode} <= set(ERRORS)


@pytest.mark.parametrize(
    "table",
    [Settings, Cluster, GatewaySettings, Monitor, Serve, EngineOptions, Upstream],
    ids=lambda table: table.__name__,
)
def test_every_key_of_the_configuration_file_is_in_its_page(table):
    text = (DOCS / "configuration.md").read_text()
    for key in file_keys(table):
        assert re.search(rf"^{key} = |\[+(serve\.)?{key}\]+", text, re.MULTILINE), key


def test_the_example_configuration_is_valid():
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)
    assert parse_settings(tomllib.loads(block), "docs", {}).gateway.port == 8400


def test_every_command_with_json_has_a_schema_and_every_schema_a_command():
    printing = {
        " ".join(path)
        for path, leaf in ALL_LEAVES
        if any("--json" in param.opts for param in leaf.params)
    }
    assert printing == set(document_names())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere_and_commands_named_in_them_exist(page):
    text = page.read_text()
    targets = [
        target for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in target
    ]
    assert [target for target in targets if not (page.parent / target).exists()] == []
    known_paths = {path[: len(path)] for path, _ in LEAVES} | {path[:1] for path, _ in LEAVES}
    for line in re.findall(r"`skep ([a-z][a-z -]*)", text):
        if line.startswith("help topics"):
            continue
        words = tuple(
            word
            for word in plain_words(line.removeprefix("help ").split())
            if not word.startswith("-")
        )
        assert any(
            words[: len(path)] == path or words == path[: len(words)] for path in known_paths
        ), line


@pytest.mark.parametrize(
    "script", ["write_cli_docs.py", "write_accuracy.py", "write_recipes.py", "write_published.py"]
)
def test_written_pages_are_what_the_code_and_the_points_say(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    monkeypatch.syspath_prepend(ROOT / "scripts")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    assert not ended.value.code, "run `make docs`"


def is_there(module, name):
    """A name of it, or a module below it that nobody has loaded yet."""
    return hasattr(module, name) or (
        hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None
    )


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(script):
    """Two of them could not be started for weeks after a function they used had gone."""
    mentions = [
        node
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    for node in mentions:
        if node.module and node.module.split(".")[0] == "skep":
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not is_there(module, alias.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"


def prose(page):
    """The sentences of a page, without code, tables, headings and pictures."""
    text = re.sub(
        r"```.*?```|^ {4}.*?$|^\|.*?$|^#.*?$|!\[.*?\]\(.*?\)",
        "\n",
        page.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", text, flags=re.MULTILINE):
        yield from (
            words for part in re.split(r"(?<=[.?!])\s+", block) if len(words := part.split()) > 2
        )


def test_the_documentation_can_be_read_to_its_end_and_its_index_names_every_page():
    assert 700 <= len((ROOT / "README.md").read_text().split()) <= 900  # one page
    words = {
        str(page.relative_to(DOCS)): len(page.read_text().split()) for page in DOCS.rglob("*.md")
    }
    assert sum(words.values()) <= 40_000, sorted(words.items(), key=lambda pair: -pair[1])
    assert (
        5
        <= len(
            re.findall(r"^\| (?!word |---|-)", (DOCS / "glossary.md").read_text(), re.MULTILINE)
        )
        <= 15
    )
    index = (DOCS / "README.md").read_text()
    assert [
        page.name
        for page in DOCS.glob("*.md")
        if f"({page.name})" not in index and page.name != "README.md"
    ] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_sentences_are_short(page):
    lengths = [len(words) for words in prose(page)]
    assert not lengths or sum(lengths) / len(lengths) <= 25
