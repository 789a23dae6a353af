"""What is done to a hive while it serves: crashes, restarts, reload, drain, scale. One hive of
fake engines for all.

Each test finds it as `as_it_was` leaves it. It was started by a shell with a runtime folder that
no other one has."""

import json
import os
import signal
import subprocess
import sys

import pytest
from hive_client import (
    answering,
    ask,
    eventually,
    family,
    refusal,
    rest_of,
    rows_of,
    status_of,
    streaming,
    write_hive,
)

from commands import environment, running_skep
from skep.engines.base import KEY_FILE
from skep.paths import user_paths
from skep.supervisor.control import ask as ask_control
from skep.supervisor.control import local_key, socket_of

SLOW = ["--token-ms=20"]
SMALL = ("-c", "1", "--runs", "1", "--max-tokens", "4", "--warm-up", "quick")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hive")


@pytest.fixture(scope="module")
def env(folder):
    return environment(folder)


@pytest.fixture(scope="module")
def configure(folder):
    return lambda *tables, **settings: write_hive(
        folder, *(tables or ({"extra": SLOW},)), **settings
    )


@pytest.fixture(scope="module", name="skep")
def skep_of_the_hive(env, folder):
    with running_skep(env, folder) as run:
        yield run


@pytest.fixture(scope="module")
def hive(skep, configure, folder):
    configure()
    (folder / "run").mkdir(mode=0o700)
    return json.loads(
        skep("up", "-d", "--json", check=0, XDG_RUNTIME_DIR=str(folder / "run")).stdout
    )


@pytest.fixture
def key(hive, env):
    """That its engines want."""
    return (user_paths(env).state / KEY_FILE).read_text().strip()


@pytest.fixture
def url(hive):
    return hive["url"]


@pytest.fixture(autouse=True)
def as_it_was(hive, configure, reload):
    configure()
    reload()


@pytest.fixture
def status(env):
    paths = user_paths(env)
    return lambda: ask_control(socket_of(paths.lock, paths.socket), {"op": "status"})


def pids_of(skep):
    """Not what is busy: the gateway has yet to ask a replica that has just begun."""
    return {name: (row["pid"], row["slots"], row["state"]) for name, row in rows_of(skep).items()}


def replicas(skep):
    return {name: row["pid"] for name, row in rows_of(skep).items() if row["kind"] == "replica"}


def test_a_crashed_gateway_or_engine_comes_back_with_its_key_while_clients_wait(skep, url, key):
    before = rows_of(skep)
    os.kill(before["gateway"]["pid"], signal.SIGKILL)
    # The socket is the supervisor's: the connection waits, it is not refused.
    assert ask(url)[0] == 200
    after = rows_of(skep)
    assert after["fake-model-0"]["pid"] == before["fake-model-0"]["pid"]
    assert after["gateway"]["pid"] != before["gateway"]["pid"]
    assert after["gateway"]["restarts"] == before["gateway"]["restarts"] + 1
    os.kill(before["fake-model-0"]["pid"], signal.SIGKILL)
    eventually(lambda: rows_of(skep)["fake-model-0"]["pid"] != before["fake-model-0"]["pid"])
    assert ask(url)[0] == 200
    engine = rows_of(skep)["fake-model-0"]
    assert engine["restarts"] == before["fake-model-0"]["restarts"] + 1
    assert [status_of(engine["url"]), status_of(engine["url"], key=key)] == [401, 200]


def test_two_replacements_at_once_leave_one_gateway(hive, env, folder):
    command = [sys.executable, "-m", "skep", "restart", "gateway"]
    both = [
        subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.DEVNULL) for _ in range(2)
    ]
    assert [process.wait(30) for process in both] == [0, 0]
    eventually(lambda: len(family(hive["pid"])) == 4)
    assert ask(hive["url"])[0] == 200


def test_a_restarted_replica_finishes_its_answers_and_a_drained_one_stays_so(skep, url):
    before = rows_of(skep)["fake-model-0"]["pid"]
    with streaming(url, max_tokens=40) as sock:
        received = sock.recv(1000)
        skep("restart", "fake-model-0", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert ask(url)[0] == 200
    assert rows_of(skep)["fake-model-0"]["pid"] != before
    before = rows_of(skep)["fake-model-0"]["restarts"]
    skep("drain", "fake-model-0", check=0)
    skep("restart", "fake-model-0", check=0)
    eventually(lambda: rows_of(skep)["fake-model-0"]["restarts"] == before + 1)
    eventually(lambda: rows_of(skep)["fake-model-0"]["state"] == "draining")
    skep("undrain", "fake-model-0", check=0)
    assert ask(url)[0] == 200


def test_a_replica_that_is_being_restarted_gets_nothing_new(skep, configure, url, reload):
    """It takes its time to end: what comes meanwhile waits for its successor."""
    configure({"extra": [*SLOW, "--ignore-term"]})
    reload()
    skep("restart", "fake-model-0", check=0)
    with streaming(url, max_tokens=100) as sock:
        received = rest_of(sock, b"")
    assert b"[DONE]" in received
    assert b"stream_cut" not in received


def test_a_second_up_says_that_one_is_running_and_nobody_who_is_not_there_is_named(
    skep, url, status
):
    """cron and sudo have no XDG_RUNTIME_DIR."""
    assert rows_of(skep)["gateway"]["state"] == "ready"
    done = skep("up", "-d", check=1)
    assert "error: skep is already running (pid " in done.stderr
    assert "skep down" in done.stderr
    ask(url)
    for command in ("drain", "undrain", "restart"):
        stderr = skep(command, "nobody", check=1).stderr
        assert "error: there is no replica `nobody`" in stderr
        assert "fake-model-0" in stderr
    gateway = eventually(
        lambda: (gateway := status()["gateway"]) and gateway["ended"].get("answered") and gateway
    )
    assert gateway["queues"] == {"fake-model": {"interactive": 0, "normal": 0, "batch": 0}}
    assert [(row["name"], row["state"], row["slots"]) for row in gateway["replicas"]] == [
        ("fake-model-0", "up", 2)
    ]


def test_replicas_and_models_that_a_reload_adds_serve_at_once(skep, configure, url, reload):
    configure({"replicas": 2, "extra": SLOW})
    reload()
    configure({"replicas": 3, "extra": SLOW}, {"model": "other"})
    names = ("removed", "changed", "adjusted", "left_out", "warnings")
    assert reload() == {
        **{name: [] for name in names},
        "added": ["fake-model-2", "other-0"],
        "unchanged": ["fake-model-0", "fake-model-1"],
    }
    rows = rows_of(skep)
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert rows["gateway"]["slots"] == 8
    assert ask(url, model="other")[0] == 200


def test_a_replica_that_a_reload_adds_wants_the_key_of_the_hive(skep, configure, reload, key):
    configure({"replicas": 2, "extra": SLOW})
    reload()
    added = rows_of(skep)["fake-model-1"]["url"]
    assert [status_of(added), status_of(added, key=key)] == [401, 200]


def test_a_stream_goes_on_while_a_reload_adds_and_removes_replicas(skep, configure, url, reload):
    configure({"replicas": 2, "extra": SLOW})
    reload()
    before = rows_of(skep)
    with streaming(url, max_tokens=150) as sock:
        received = sock.recv(1000)
        busy = next(
            name for name, row in rows_of(skep).items() if row["kind"] == "replica" and row["busy"]
        )
        configure({"replicas": 3, "extra": SLOW}, {"model": "other"})
        reload()
        configure({"replicas": 1, "extra": SLOW})
        assert sorted(reload()["removed"]) == ["fake-model-1", "fake-model-2", "other-0"]
        received = rest_of(sock, received)
    assert busy in before
    assert b"[DONE]" in received
    after = rows_of(skep)
    assert set(after) == {"fake-model-0", "gateway"}
    assert after["fake-model-0"]["pid"] == before["fake-model-0"]["pid"]


def test_after_a_reload_the_only_model_answers_by_a_name_that_it_does_not_have(
    configure, url, reload
):
    configure({"extra": SLOW}, {"model": "other"})
    reload()
    configure({"extra": SLOW})
    reload()
    assert ask(url, model="other")[0] == 200


def test_replicas_that_change_are_started_anew_after_their_answers(skep, configure, url, reload):
    """One after the other; requests that find none of them wait."""
    before = rows_of(skep)["fake-model-0"]["pid"]
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        configure({"extra": SLOW, "slots": 3})
        assert reload()["changed"] == ["fake-model-0"]
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    after = rows_of(skep)["fake-model-0"]
    assert (after["slots"], after["state"]) == (3, "ready")
    assert after["pid"] != before
    assert ask(url)[0] == 200


@pytest.mark.slow
def test_a_request_that_comes_while_its_only_replica_changes_waits(skep, configure, url):
    with streaming(url, max_tokens=400) as sock:
        received = sock.recv(1000)
        configure({"extra": ["--load-s=0.3"]})
        skep("reload", check=0)
        assert rows_of(skep)["fake-model-0"]["state"] == "draining"
        assert "another reload is in progress" in skep("reload", check=1).stderr
        assert ask(url)[0] == 200
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_shares_of_slots_and_aliases_hold_at_once_and_without_a_restart(
    skep, configure, url, reload
):
    configure({"slots": 4})
    reload()
    before = rows_of(skep)["fake-model-0"]["pid"]
    strict = "strict_models = true\n"
    configure({"slots": 4}, gateway=strict)
    reload()
    assert refusal(url, model="gpt-4o") == (404, "model_not_found")
    configure(
        {"slots": 4, "reserve": 1, "soft_slots": 2},
        gateway=f'{strict}[aliases]\n"gpt-*" = "fake-model"\n',
    )
    assert reload()["adjusted"] == ["fake-model-0"]
    assert ask(url, model="gpt-4o")[0] == 200
    assert rows_of(skep)["fake-model-0"]["pid"] == before


def test_a_file_with_an_error_changes_nothing_and_says_so(skep, url, folder):
    good = (folder / "skep.toml").read_text()
    before = pids_of(skep)
    for bad, complaint in [
        ("[gateway\n", "skep.toml cannot be read"),
        (good.replace("slots = 2", "slots = 0"), "`serve.0.slots`"),
        (good.replace("slots = 2", "slots = 2\nreserve = 2"), "`reserve` = 2 takes all 2 slots"),
        (
            good + '[aliases]\nx = "nobody"\n',
            "the alias `x` stands for `nobody`, which is not served",
        ),
        (good.replace('engine = "fake"', 'engine = "steam"'), "there is no engine `steam`"),
    ]:
        (folder / "skep.toml").write_text(bad)
        assert complaint in skep("reload", check=2).stderr
    (folder / "skep.toml").unlink()
    assert "does not exist" in skep("reload", check=2).stderr
    assert pids_of(skep) == before
    assert ask(url)[0] == 200


def test_a_reloaded_replica_that_does_not_start_is_an_error_and_the_hive_stays(
    skep, configure, reload
):
    configure({"extra": ["--crash-at-start=no such kernel"]})
    done = skep("reload", "--wait", check=1)
    assert "error: replica `fake-model-0` did not start: no such kernel" in done.stderr
    assert rows_of(skep)["fake-model-0"]["state"] == "failed"
    configure()
    assert reload()["changed"] == ["fake-model-0"]
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_an_address_is_not_changed_by_a_reload(skep, folder):
    text = (folder / "skep.toml").read_text()
    (folder / "skep.toml").write_text(
        text.replace("port = 0", 'port = 9\nhost = "::1"\nbody_limit = "1MiB"')
    )
    done = skep("reload", "--wait", check=0)
    assert "not applied yet: `port`; run `skep down && skep up -d`" in done.stderr
    assert "not applied yet: `host`" in done.stderr
    assert "not applied yet: `body_limit`; run `skep replica restart gateway`" in done.stderr


def test_a_reload_from_another_folder_reads_the_same_file(configure, env, folder):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "skep.toml").write_text("nonsense")
    configure({"replicas": 2, "extra": SLOW})
    command = [sys.executable, "-m", "skep", "reload", "--wait", "--json"]
    done = subprocess.run(
        command, env=env, cwd=folder / "elsewhere", capture_output=True, text=True
    )
    assert json.loads(done.stdout)["added"] == ["fake-model-1"]


def test_a_key_that_was_added_is_wanted_at_once(skep, url, reload):
    key = skep("key", "add", "agent", check=0).stdout.strip()
    assert ask(url)[0] == 200  # not before the reload
    reload()
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    reload()
    assert ask(url)[0] == 200  # on loopback, no key means that none is wanted


def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new(
    skep, configure, url, reload, status
):
    configure({"replicas": 2, "extra": SLOW})
    reload()
    with streaming(url, max_tokens=100) as sock:
        received = sock.recv(1000)
        name = next(
            row["name"] for row in status()["rows"] if row["kind"] == "replica" and row["busy"]
        )
        assert (
            f"{name} gets no new requests; 1 still running" in skep("drain", name, check=0).stderr
        )
        assert rows_of(skep)[name]["state"] == "draining"
        for _ in range(4):
            assert ask(url)[0] == 200
        assert "has none running" in skep("drain", name, "--wait", check=0).stderr
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    tokens = status()["gateway"]["tokens"]
    ask(url)
    assert status()["gateway"]["tokens"].get(name) == tokens.get(name)
    skep("undrain", name, check=0)
    assert rows_of(skep)[name]["state"] == "ready"


def test_a_stream_goes_on_while_replicas_are_added_and_removed_by_hand(skep, url):
    before = replicas(skep)
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        done = skep("scale", "fake-model=3", "--wait", check=0)
        assert "added: fake-model-1, fake-model-2" in done.stderr
        assert "1 -> 3 replicas, until the next `skep replica reload` or `skep up`" in done.stderr
        during = replicas(skep)
        assert (len(during), during["fake-model-0"]) == (3, before["fake-model-0"])
        document = json.loads(skep("scale", "fake-model=1", "--wait", "--json", check=0).stdout)
        assert (document["before"], document["removed"]) == (3, ["fake-model-1", "fake-model-2"])
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert replicas(skep) == before


def test_a_reload_brings_back_the_number_of_replicas_in_the_file(skep):
    before = replicas(skep)
    skep("scale", "fake-model=2", "--wait", check=0)
    skep("reload", "--wait", check=0)
    assert replicas(skep) == before


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nobody=2", "skep starts no model `nobody` here"),
        ("fake-model=0", "`fake-model` cannot have 0 replicas"),
        ("nobody", "`nobody` is not MODEL=N"),
    ],
)
def test_a_scale_that_makes_no_sense_is_refused_and_changes_nothing(skep, argument, message):
    before = replicas(skep)
    assert message in skep("scale", argument, check=2).stderr
    assert replicas(skep) == before


def test_skep_finds_the_key_of_a_replica_by_itself(skep, configure, reload):
    """For a load on one replica, and for the monitor's probes of it."""
    configure({"extra": ["--token-ms=1"]})
    reload()
    engine = rows_of(skep)["fake-model-0"]["url"]
    swept = skep(
        "bench",
        "sweep",
        "--url",
        engine.replace("127.0.0.1", "localhost"),
        *SMALL,
        "--json",
        check=0,
    )
    assert json.loads(swept.stdout)["levels"][0]["errors"] == []
    skep("monitor", "add", "one", "--url", engine, check=0)
    probed = json.loads(skep("monitor", "probe", "one", "--json", check=0).stdout)
    assert json.dumps(probed).count('"failed"') == 0


def test_the_key_goes_to_replicas_of_the_hive_and_to_no_other_port(skep, hive, env):
    with answering(404) as (url, requests):
        skep("bench", "sweep", "--url", url, *SMALL, check=1)
        assert requests
        assert set(requests) == {None}
        assert local_key(url, env, user_paths(env)) is None
    assert local_key(hive["url"], env, user_paths(env)) is None
    assert (
        local_key(hive["url"], {**env, "SKEP_API_KEY": "of-the-gateway"}, user_paths(env))
        == "of-the-gateway"
    )
