"""`skep swarm ...` and `skep tune ...` called in the process of the test: no start of Python for each command."""

import contextlib
import io
from dataclasses import dataclass

from typer.main import get_command

from skep.cli.main import app_of
from skep.errors import SkepError

APP = get_command(app_of(["swarm", "tune"]))


@dataclass
class Called:
    out: str
    err: str
    error: SkepError | None
    code: int


def swarm(*words, check=None):
    return _called("swarm", *words, check=check)


def tune(*words, check=None):
    return _called("tune", *words, check=check)


def _called(*words, check):
    out, err, error, code = io.StringIO(), io.StringIO(), None, 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            APP.main([*map(str, words)], prog_name="skep")
        except SystemExit as ended:
            code = ended.code or 0
        except SkepError as raised:
            error, code = raised, raised.exit_code
    called = Called(out.getvalue(), err.getvalue(), error, code)
    assert check is None or code == check, called
    return called


def own_folders(monkeypatch, tmp_path):
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
