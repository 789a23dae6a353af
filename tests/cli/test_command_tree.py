"""Only the modules of the command that is asked for are loaded; all of them together are the tree."""

import inspect
import re
from importlib import import_module

import pytest
import typer.main

from skep.cli.main import PARTS, app_of, parts_of

WHOLE = typer.main.get_command(app_of(PARTS)).commands


def below(command):
    return set(getattr(command, "commands", ()))


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_command_loaded_alone_has_all_that_it_has_in_the_whole_tree(name):
    alone = typer.main.get_command(app_of(parts_of([name]))).commands
    assert below(alone[name]) == below(WHOLE[name])
    assert len(alone) < len(WHOLE)


def test_every_command_of_every_module_is_in_the_tree():
    assert {name for names in PARTS.values() for name in names} == set(WHOLE)


@pytest.mark.parametrize("words", [[], ["--help"], ["nosuch"], ["-h", "up"]])
def test_a_line_without_a_command_gets_the_whole_tree(words):
    assert parts_of(words) == tuple(PARTS)


def carried_out():
    """What each `command(..., runs=PATH)` names, and the parameters of the function that it is put on."""
    for module in (import_module(f"skep.cli.{part}") for part in PARTS):
        for path, name in re.findall(r'runs="([\w.]+)",?\s*\)\s*(?:def |\()(\w+)', inspect.getsource(module)):
            yield path, [*inspect.signature(getattr(module, name)).parameters]


@pytest.mark.parametrize(("path", "names"), sorted(carried_out()))
def test_what_carries_a_command_out_takes_its_parameters(path, names):
    module, _, name = path.partition(".")
    inspect.signature(getattr(import_module(f"skep.cli.{module}"), name)).bind(**dict.fromkeys(names))
