"""`skep bench mixed --models A,B`: models are loaded one at a time, measured and compared in one
command.
"""

import re

import pytest
from hive_client import eventually
from in_process import call, refused

from skep.paths import user_paths
from skep.supervisor.control import ask as control
from skep.testing.process import FakeEngine
from skep.units import parse_seconds

pytestmark = [pytest.mark.usefixtures("paths"), pytest.mark.needs("bwrap")]
HEAD = 'start_deadline = "20s"\ndrain = "10s"\nmax_loaded = 1\n'
ONE_LEVEL = ("--repeats", "2", "-c", "1")


@pytest.fixture
def hive(up, configure, env):
    """Serves models of which one is loaded at a time, and returns the URL."""

    def start(**models):
        configure(
            *(
                {"model": name, "on_demand": True, "slots": 8, **settings}
                for name, settings in models.items()
            ),
            head=HEAD,
        )
        return up()["url"]

    return start


def states(env):
    rows = control(user_paths(env).socket, {"op": "status"}, timeout_s=30)["rows"]
    return {row["model"]: row["state"] for row in rows if row["kind"] == "replica"}


@pytest.mark.slow
def test_two_models_are_loaded_measured_and_compared_in_one_command(hive, env):
    """The slower one is told by its times; what was loaded before is loaded at the end."""
    url = hive(quick={}, slow={"extra": ["--token-ms=8"]})
    call("model", "load", "quick", check=0)
    done = call("bench", "mixed", "--url", url, "--models", "quick,slow", *ONE_LEVEL, check=0)
    for words in (
        "A  quick, run ",
        "B  slow, run ",
        "conversation time",
        "right answers: 0 of 6 (A), 0 of 6 (B)",
    ):
        assert words in done.out
    (times,) = re.findall(r"^conversation time\n.*\n1 +(.*)", done.out, re.MULTILINE)
    medians = re.findall(r"[0-9.]+ m?s", times)[:2]
    quick_s, slow_s = (parse_seconds(median.replace(" ", "")) for median in medians)
    assert slow_s > 2 * quick_s
    assert done.out.splitlines()[-1] == "neither does this work: none of their answers passed"
    assert "unloading quick" in done.err
    assert "slow is loaded after" in done.err
    assert "loading quick again, as before" in done.err
    eventually(lambda: states(env) == {"quick": "ready", "slow": "unloaded"})
    models = [run["model"] for run in call("runs", "--json", check=0).json]
    assert models == ["slow", "quick"]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_does_not_end_the_others(hive):
    url = hive(broken={"extra": ["--crash-at-start=error: no memory", "--exit-code=78"]}, good={})
    done = call("bench", "mixed", "--url", url, "--models", "broken,good", *ONE_LEVEL, check=1)
    assert "broken was not measured: `broken` cannot be loaded" in done.err
    assert "good, run " in done.out
    assert "1 of 2 models were not measured" in done.error.message


@pytest.mark.slow
def test_models_of_another_server_are_compared_in_json_without_loading_them(
    hive, monkeypatch, tmp_path
):
    url = hive(one={}, two={})
    # Another installation, without a hive.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    done = call(
        "bench", "mixed", "--url", url, "--models", "two,one", *ONE_LEVEL, "--json", check=0
    )
    assert "its server loads the models itself" in done.err
    assert "loading" not in done.err
    assert [run["model"] for run in done.json["runs"]] == ["two", "one"]
    assert done.json["comparison"]["mixed"]["better"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--models one", "names 1 different models"),
        ("--models one,one", "names 1 different models"),
        ("--models one,nothere", "does not serve `nothere`"),
        ("--models one,two --model one", "--model and --models were both given"),
    ],
)
def test_names_that_cannot_be_compared_are_one_line_before_anything_is_measured(words, says):
    with FakeEngine(slots=8, model="one") as engine:
        assert says in refused("bench", "mixed", "--url", engine.url, *words.split())
    assert call("runs", "--json").json == []
