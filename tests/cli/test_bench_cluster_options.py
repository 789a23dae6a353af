"""`skep bench --cluster`: what is refused before any cluster is asked."""

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import UserError

URL = ["--url", "http://127.0.0.1:1", "--cluster", "auto"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "--shape", "conversation"], "--cluster cannot spread conversations"),
        (["sweep", "-c", "1,70000"], "--concurrency 70000 is too large"),
        (["serial-vs-swarm", "--agents", "1,70000"], "--agents 70000 is too large"),
    ],
)
def test_what_a_cluster_cannot_do_either_is_refused_first(words, said):
    done = CliRunner().invoke(app, ["bench", *words, *URL])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == said


def test_mixed_traffic_has_no_such_option(tmp_path):
    done = CliRunner().invoke(app, ["bench", "classes", str(tmp_path), *URL])
    assert done.exit_code == 2
    assert "No such option" in done.output
