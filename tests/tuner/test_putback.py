"""The user's service set aside and put back: after the block, after an error in it, after a kill of who held it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from skep.engines.control import NotRunning, ask, socket_of
from skep.errors import UserError
from skep.places import user_paths
from skep.putback import Service, running_service, service_set_aside

HOLDS = """
import os, sys, time
from skep.places import user_paths
from skep.putback import service_set_aside
with service_set_aside(user_paths(os.environ)) as found:
    print(found, flush=True)
    sys.stdin.readline()
"""
TOML = """
[gateway]
port = 0
[[serve]]
model = "fake-model"
engine = "fake"
replicas = 2
extra = ["--token-ms=1"]
"""


def status(env):
    paths = user_paths(env)
    try:
        return ask(socket_of(paths.lock, paths.socket), {"op": "status"})
    except NotRunning:
        return None


def eventually(check, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.05)  # asking another process: there is no event to await
    return found


def models(url, key):
    request = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [one["id"] for one in json.load(answer)["data"]]


def test_where_nothing_runs_nothing_is_set_aside(env):
    paths = user_paths(env)
    assert running_service(paths) is None
    with service_set_aside(paths) as found:
        assert found is None
    assert not paths.logs.exists()


def test_only_the_same_cards_are_in_the_way():
    service = Service("http://127.0.0.1:1", ("m",), 1, (0, 2), {}, {}, None)
    assert service.shares(()) == (0, 2)
    assert service.shares((1, 2)) == (2,)
    assert service.shares((1, 3)) == ()
    assert "on GPU 0, 2 at" in str(service)


@pytest.mark.slow
def test_it_comes_back_as_it_was_however_the_holder_ends(skep, env, tmp_path):
    """Same port, replicas, wishes and environment; once by leaving the block, once by a kill."""
    (tmp_path / "skep.toml").write_text(TOML)
    skep("up", "-d", "--slots", "3", check=0, SKEP_API_KEY="sesame")
    before = status(env)
    assert str(running_service(user_paths(env))) == f"skep serves fake-model at {before['url']} (pid {before['pid']})"

    def held():
        return subprocess.Popen(
            [sys.executable, "-c", HOLDS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def same():
        now = status(env)
        if now is None or now["phase"] != "ready":
            return False
        rows = [[(row["name"], row["slots"]) for row in one["rows"]] for one in (before, now)]
        assert rows[0] == rows[1]
        assert now["url"] == before["url"]
        assert models(now["url"], "sesame") == ["fake-model"]
        return now["pid"] != before["pid"]

    with held() as holder:
        assert before["url"] in holder.stdout.readline()
        assert status(env) is None
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.wait(60) == 0
        assert same()
    before = status(env)
    with held() as holder:
        assert holder.stdout.readline()
        assert status(env) is None
        os.killpg(holder.pid, signal.SIGTERM)
        holder.kill()
    eventually(same)


@pytest.mark.slow
def test_one_that_could_not_be_started_again_is_not_stopped(skep, env, tmp_path):
    (tmp_path / "skep.toml").write_text(TOML)
    skep("up", "-d", check=0)
    (tmp_path / "skep.toml").write_text("[gateway]\nprot = 0\n")
    with pytest.raises(UserError, match="prot"), service_set_aside(user_paths(env)):
        pass
    assert status(env)["phase"] == "ready"
