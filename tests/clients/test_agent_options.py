"""Words of `skep agent` that do not belong together."""

import pytest

from skep.cli.main import run
from skep.errors import UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--write"], "--write needs an agent"),
        (["--undo"], "--undo needs an agent"),
        (["claude", "--write", "--undo"], "--write and --undo contradict each other"),
        (["claude", "--write", "--json"], "--write and --json contradict each other"),
        (["claude", "--write", "--", "-p", "hi"], "--write takes no arguments of the agent"),
        (["claude", "--undo", "--", "-p", "hi"], "--undo takes no arguments of the agent"),
    ],
)
def test_what_would_be_ignored_is_refused(words, message):
    with pytest.raises(UserError) as caught:
        run(["agent", *words])
    assert caught.value.message == message
    assert caught.value.hint
