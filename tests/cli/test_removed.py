"""A command or option that is gone says in one line what to use instead."""

import pytest

from skep.cli.main import REMOVED_COMMANDS, REMOVED_OPTIONS

GONE = [
    *((command.split(), message) for command, message in REMOVED_COMMANDS.items()),
    *(([*command.split(), option], message) for (command, option), message in REMOVED_OPTIONS.items()),
]


@pytest.mark.parametrize(
    ("words", "message"), GONE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_is_gone_says_what_to_use_instead(skep, words, message):
    done = skep(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
