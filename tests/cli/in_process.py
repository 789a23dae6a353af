"""`skep` called in the process of the test: no start of Python for each command."""

import contextlib
import io
import json
from dataclasses import dataclass

from skep.cli.main import run
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


def call(*words, check=None):
    out, err, error, code = io.StringIO(), io.StringIO(), None, 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run([*map(str, words)])
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
