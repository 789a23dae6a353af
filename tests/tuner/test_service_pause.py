"""The user's service paused while something else has the machine: it serves again however the
holder ends.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import environment, running_skep
from skep.errors import EngineError, UserError
from skep.paths import user_paths
from skep.supervisor.control import NotRunning, ask, socket_of
from skep.tuner.running import Service, running_service, service_paused

HOLDS = """
import os, sys
from skep.paths import user_paths
from skep.tuner.running import service_paused
with service_paused(user_paths(os.environ)) as found:
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
extra = ["--token-ms=1", "--answers={answers}"]
[[serve]]
model = "seldom"
engine = "fake"
on_demand = true
"""


@pytest.fixture
def answers(skep, tmp_path):
    """A file without which the engine does not start; skep is up with it."""
    path = tmp_path / "answers.jsonl"
    path.write_text("")
    (tmp_path / "skep.toml").write_text(TOML.format(answers=path))
    skep("up", "-d", "--slots", "3", check=0, SKEP_API_KEY="sesame")
    return path


def status(env):
    paths = user_paths(env)
    try:
        return ask(socket_of(paths.lock, paths.socket), {"op": "status"})
    except NotRunning:
        return None


def held(env):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", HOLDS], env=env, **pipes, text=True, start_new_session=True
    )


def states(status_now):
    return [row["state"] for row in status_now["rows"] if row["kind"] == "replica"]


def eventually(check, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (answer := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.05)  # asking another process: there is no event to await
    return answer


def asked(url, model="fake-model"):
    """The status and the text of an answer to one request."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    ).encode()
    headers = {"authorization": "Bearer sesame", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def serves_as_before(env, before):
    now = status(env)
    if now["phase"] != "ready":
        return False
    rows = [
        [(row["name"], row["slots"], row["state"]) for row in report["rows"]]
        for report in (before, now)
    ]
    assert rows[0] == rows[1]
    assert (now["url"], now["pid"]) == (before["url"], before["pid"])
    assert asked(now["url"])[0] == 200
    return True


def test_where_nothing_runs_nothing_is_paused(env):
    paths = user_paths(env)
    assert running_service(paths) is None
    with service_paused(paths) as service:
        assert service is None
    assert not paths.logs.exists()


def test_only_the_same_cards_are_in_the_way():
    service = Service("http://127.0.0.1:1", ("m",), 1, (0, 2))
    assert service.shares(()) == (0, 2)
    assert service.shares((1, 2)) == (2,)
    assert service.shares((1, 3)) == ()
    assert "on GPU 0, 2 at" in str(service)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that pause it one after the other: each finds it serving."""
    folder = tmp_path_factory.mktemp("service")
    env = environment(folder)
    answers = folder / "answers.jsonl"
    answers.write_text("")
    (folder / "skep.toml").write_text(TOML.format(answers=answers))
    with running_skep(env, folder) as skep:
        skep("up", "-d", "--slots", "3", check=0, SKEP_API_KEY="sesame")
        # A configuration that is broken meanwhile is no matter.
        (folder / "skep.toml").write_text("[gateway]\nprot = 0\n")
        yield SimpleNamespace(skep=skep, env=env, before=status(env))


@contextmanager
def pause_of(service):
    """The service is paused by another process, which leaves its block at the end."""
    with held(service.env) as holder:
        try:
            assert service.before["url"] in holder.stdout.readline()
            yield holder
        finally:
            holder.communicate("\n", timeout=60)


@pytest.fixture
def holder(service):
    with pause_of(service) as process:
        yield process


@pytest.mark.slow
def test_a_running_service_is_named_with_its_models_address_and_process(service):
    url = service.before["url"]
    words = f"skep serves fake-model, seldom at {url} (pid {service.before['pid']})"
    assert str(running_service(user_paths(service.env))) == words


def engines_of(status_now):
    """The processes of the replicas."""
    replicas = [row for row in status_now["rows"] if row["kind"] == "replica"]
    return [row["pid"] for row in replicas if row["pid"] is not None]


@pytest.mark.slow
def test_the_engines_of_a_paused_service_end(service):
    engines = engines_of(status(service.env))
    with pause_of(service):
        paused = status(service.env)
        alive = [pid for pid in engines if Path(f"/proc/{pid}").exists()]
    assert len(engines) == 2
    assert alive == []
    assert (paused["phase"], states(paused)) == ("paused", ["paused", "paused", "unloaded"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["fake-model", "seldom"])
def test_a_request_to_a_paused_service_is_told_who_uses_the_machine(service, holder, model):
    code, words = asked(service.before["url"], model)
    assert code == 503
    assert f"`skep tune --in-place` (pid {holder.pid}) uses the machine" in words


@pytest.mark.slow
@pytest.mark.usefixtures("holder")
def test_a_request_to_a_paused_service_starts_nothing(service):
    for model in ("fake-model", "seldom"):
        asked(service.before["url"], model)
    assert states(status(service.env)) == ["paused", "paused", "unloaded"]


@pytest.mark.slow
@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("command", [("scale", "fake-model=3"), ("restart", "fake-model-0")])
def test_a_paused_service_is_neither_scaled_nor_restarted(service, command):
    assert "skep is paused" in service.skep(*command, check=1).stderr


@pytest.mark.slow
@pytest.mark.usefixtures("holder")
def test_a_paused_service_is_not_paused_by_another_process(service):
    with (
        pytest.raises(EngineError, match="skep is paused"),
        service_paused(user_paths(service.env)),
    ):
        pass


@pytest.mark.slow
def test_a_service_serves_as_before_when_its_holder_leaves_the_block(service):
    with pause_of(service) as holder:
        pass
    assert holder.returncode == 0
    assert serves_as_before(service.env, service.before)


@pytest.mark.slow
def test_a_service_serves_as_before_when_its_holder_is_killed(service):
    with held(service.env) as holder:
        assert holder.stdout.readline()
        assert status(service.env)["phase"] == "paused"
        os.killpg(holder.pid, signal.SIGKILL)
    eventually(lambda: serves_as_before(service.env, service.before))
    assert eventually(lambda: asked(service.before["url"], "seldom")[0] == 200)


@pytest.mark.slow
def test_an_engine_that_cannot_start_at_once_is_tried_again(env, answers):
    """As where a card is given back late; it is no reason for the hive to end.

    The error of the block is told all the same.
    """
    before = status(env)
    away = answers.with_suffix(".away")

    def back():
        eventually(lambda: "failed" in states(status(env)))
        away.rename(answers)

    def blocked(threads):
        with service_paused(user_paths(env)):
            answers.rename(away)
            threads.submit(back)
            raise UserError("of the block", hint="try it")

    with ThreadPoolExecutor() as threads, pytest.raises(UserError, match="of the block") as caught:
        blocked(threads)
    assert caught.value.hint == "try it"
    assert serves_as_before(env, before)


@pytest.mark.slow
@pytest.mark.usefixtures("answers")
def test_one_that_is_stopped_while_it_is_paused_stays_stopped(skep, env):
    with held(env) as holder:
        assert holder.stdout.readline()
        skep("down", check=0)
        assert status(env) is None
        _, errors = holder.communicate("\n", timeout=60)
    assert "the deployment was stopped during the tuning" in errors
    assert status(env) is None
