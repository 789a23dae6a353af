"""Tables on the terminal."""

from skep.cli.output import print_table


def test_brackets_in_a_cell_are_no_markup(capsys):
    """A model or a run may be called `[/x]`; such a cell once ended the command with a traceback."""
    print_table(("NAME", "C"), [["[/x] [bold]model[/bold]", "1"]], right=("C",))
    assert "[/x] [bold]model[/bold]" in capsys.readouterr().out
