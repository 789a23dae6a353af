"""Only the module of the command that is asked for is loaded; all of them together are the tree."""

from importlib import import_module

import pytest
import typer.main

from skep.cli.main import PARTS, app_of


@pytest.mark.parametrize("part", PARTS)
def test_each_module_has_the_commands_that_are_written_down_for_it(part):
    assert hasattr(import_module(f"skep.cli.{part}"), "register")
    made = typer.main.get_command(app_of((part,)))
    assert set(made.commands) == set(PARTS[part])


def test_no_command_has_two_modules():
    names = [name for names in PARTS.values() for name in names]
    assert len(names) == len(set(names))
