"""Only the modules of the command that is asked for are loaded; all of them together are the tree."""

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
