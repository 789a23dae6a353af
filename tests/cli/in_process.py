"""`skep` called in the process of the test: no start of Python for each command."""

import contextlib
import io
import json
from dataclasses import dataclass
from functools import cache

from typer.main import get_command

from skep.cli.main import app_of, parts_of
from skep.errors import SkepError


@dataclass
class Called:
    out: str
    err: str
    error: SkepError | None
    code: int

    @property
    def json(self):
        return json.loads(self.out)


@cache
def _command(parts):
    return get_command(app_of(parts))  # made once: each making takes longer than a command


def call(*words, check=None):
    out, err, error, code = io.StringIO(), io.StringIO(), None, 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _command(parts_of([*map(str, words)])).main([*map(str, words)], prog_name="skep")
        except SystemExit as ended:
            code = ended.code or 0
        except SkepError as raised:
            error, code = raised, raised.exit_code
    called = Called(out.getvalue(), err.getvalue(), error, code)
    assert check is None or code == check, called
    return called


def refused(*words, code=2):
    """The one line and the hint of a command that ends with an error, and has printed nothing."""
    called = call(*words, check=code)
    assert called.error is not None, called
    assert called.out == "", called
    assert "\n" not in called.error.message
    return f"{called.error.message} | {called.error.hint}"
