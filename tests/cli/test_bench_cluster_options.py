"""`skep bench --cluster`: what is refused before any cluster is asked."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import UserError

CLUSTER = ["--cluster", "127.0.0.1:1"]
URL = ["--url", "http://127.0.0.1:1", *CLUSTER]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "-c", "1,70000", *URL], "--concurrency 70000 is too large"),
        (["sweep", "--shape", "conversation", "-c", "1,70000", *URL], "--concurrency 70000 is too large"),
        (["serial-vs-swarm", "--agents", "1,70000", *URL], "--agents 70000 is too large"),
        (
            ["ab", "http://127.0.0.1:1", "http://127.0.0.1:2", "-c", "70000", *CLUSTER],
            "--concurrency 70000 is too large",
        ),
        (["quality", "-c", "1,70000", *URL], "--concurrency 70000 is too large"),
        (["mixed", *URL], "`bench mixed` is one conversation with four requests beside it: there is nothing to spread"),
    ],
)
def test_what_a_cluster_cannot_do_either_is_refused_first(words, said):
    done = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(done.exception, UserError), done.output
    assert str(done.exception) == said
    assert done.exception.hint


@pytest.mark.parametrize("words", [["classes"], ["replay"], ["matrix"]])
def test_a_file_is_read_before_the_cluster_is_asked(words, tmp_path):
    done = CliRunner().invoke(app, ["bench", *words, str(tmp_path), *CLUSTER])
    assert isinstance(done.exception, UserError)
    assert "cannot be read" in str(done.exception)


@pytest.mark.parametrize(("end", "said"), [("os._exit(1)", "error: killed in the middle"), ("raise SystemExit(1)", "")])
def test_an_end_by_force_is_said_by_another_process(end, said):
    """Ray ends its driver's process where the raylet beside it is gone: not even a `finally` is carried out."""
    script = f"import os\nfrom skep.cli.spreading import _survived\nwith _survived():\n    {end}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr[: len(said)] == said
    assert done.stderr.count("\n") == (2 if said else 0)
