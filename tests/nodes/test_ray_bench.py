"""`skep bench --cluster`: load made by the nodes of a real Ray cluster, one of which has another clock."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from skep.places import user_paths
from skep.records import RunState
from skep.store.database import open_store
from skep.testing.process import FakeEngine

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]

AHEAD_S = 500.0  # of the node with another clock
MARK = f"SKEP_TEST_MARK={uuid.uuid4().hex}"  # in the environment of whatever the cluster starts
SHIFTED = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "--time", "--monotonic", f"{AHEAD_S:.0f}"]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes; a third in a time namespace of its own, where this machine lets us make one."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    name, _, value = MARK.partition("=")
    folder = tempfile.mkdtemp(prefix="rb", dir="/tmp")
    os.environ |= {name: value, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    shifted = None
    try:
        if can_shift():
            shifted = subprocess.Popen(
                [*SHIFTED, Path(sys.executable).with_name("ray"), "start", "--block", "--address", made.address,
                 "--num-cpus", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )  # fmt: skip
        wait_until(lambda: alive(made) == 2 + (shifted is not None), 60)
        yield made
    finally:
        if shifted is not None:
            shifted.kill()
            shifted.wait()
        made.shutdown()
        del os.environ[name], os.environ["RAY_TMPDIR"]
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(slots=64) as started:
        yield started


def can_shift():
    return not subprocess.run([*SHIFTED, "true"], capture_output=True, check=False).returncode


def alive(cluster):
    return sum(node["Alive"] for node in cluster.global_state.node_table())


def wait_until(holds, timeout_s=20.0):
    ends = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends, holds
        time.sleep(0.1)


def started(env, *args, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "skep", *map(str, args)], env=env, **pipes, **options)


def bench(env, cluster, *args, check=0):
    process = started(env, "bench", *args, "--cluster", cluster.address)
    out, err = process.communicate(timeout=120)
    assert process.returncode == check, (process.returncode, out, err)
    assert "Traceback" not in err
    return out, err


def sweep(env, cluster, engine, *args, check=0):
    quick = ("--runs", 1, "--warm-up", "quick", "--max-tokens", 4, "--seed", 1)
    return bench(env, cluster, "sweep", "--url", engine.url, *quick, *args, check=check)


def load_processes():
    """Of this cluster, on all its nodes."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            words = (folder / "cmdline").read_bytes()
            if b"skep.bench.worker" in words and MARK.encode() in (folder / "environ").read_bytes():
                found.append(pid)
    return found


def stored(env):
    with open_store(user_paths(env).store, read_only=True) as store:
        run = store.run("last")
        return run, store.requests(run.id), store.level_facts(run.id)


# Rows and clocks


def test_every_request_is_made_once_and_stored_on_our_clock(env, cluster, engine):
    """Also by a node whose clock is far ahead of ours."""
    began = time.monotonic()
    out, err = sweep(env, cluster, engine, "-c", "1,6", "--tasks", 24, "--json")
    took_s = time.monotonic() - began
    run, rows, facts = stored(env)
    assert run.state is RunState.DONE
    for level in (1, 6):
        part = [row for row in rows if row.level == level]
        assert sorted(row.index for row in part) == list(range(24))
        assert all(row.ok and 0 < row.started_s < row.first_token_s <= row.ended_s < took_s for row in part)
    first, second = (next(one for one in json.loads(out)["levels"] if one["concurrency"] == c) for c in (1, 6))
    assert first["wall_s"] < took_s
    assert (first["workers"]["number"], second["workers"]["number"]) == (1, alive(cluster))
    assert f"load from {alive(cluster)} workers on {alive(cluster)} nodes" in err
    told = {fact.level: fact.fact["workers"] for fact in facts if fact.name == "workers"}
    assert sum(one["requests"] for one in told[6]) == 24
    for one in told[6]:
        off_s = min(abs(one["clock_ahead_s"]), abs(one["clock_ahead_s"] - AHEAD_S))
        assert off_s * 1000 <= one["clock_error_ms"] < 100
    if can_shift():
        assert sum(one["clock_ahead_s"] > AHEAD_S / 2 for one in told[6]) == 1
    wait_until(lambda: not load_processes())


def test_the_level_is_as_wide_as_it_says_over_all_nodes(env, cluster):
    """Rows of all workers overlap on our clock as they did in the engine."""
    with FakeEngine(slots=64, token_ms=10) as engine:
        sweep(env, cluster, engine, "-c", "6", "--tasks", 24, "--max-tokens", 20, "--fixed-output")
        inside = engine.state()["max_inside"]
    rows = [row for row in stored(env)[1] if row.level]
    moments = sorted([(row.started_s, 1) for row in rows] + [(row.ended_s, -1) for row in rows])
    width = most = 0
    for _, step in moments:
        width += step
        most = max(most, width)
    assert inside == 6
    assert most in (6, 7)  # within the clocks' error, one may begin before another has ended


def test_a_rate_is_kept_over_all_nodes(env, cluster, engine):
    bench(env, cluster, "open", "--url", engine.url, "--rate", 40, "--arrivals", "constant", "--for", "1s",
          "--max-tokens", 2)  # fmt: skip
    run, rows, facts = stored(env)
    rows = [row for row in rows if row.level]
    (told,) = [fact.fact["workers"] for fact in facts if fact.name == "workers"]
    assert all(0 <= one["late_ms"] < 5000 for one in told)  # on the clock of each
    assert run.kind == "open"
    assert sorted(row.index for row in rows) == list(range(40))
    due = sorted(row.scheduled_s for row in rows)
    assert due[-1] - due[0] == pytest.approx(0.975, abs=0.3)


# Every kind of load


TALKS = ("--shape", "conversation", "--turns", 3, "--think", "50ms", "-c", 4, "--tasks", 24)
MIX = """
[class.chat]
shape = "conversation"
agents = 3
priority = "interactive"
prompt_tokens = 60
max_tokens = 4
turns = 3
think_s = 0.1

[class.hooks]
shape = "open"
rate = 20
arrivals = "constant"
prompt_tokens = 60
max_tokens = 4

[class.nightly]
shape = "steady"
share = 1.0
priority = "batch"
prompt_tokens = 60
max_tokens = 4
"""


def here(env, *args):
    process = started(env, "bench", *args)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (out, err)
    return out


def keys(document):
    """The form of a summary: the names in it and in each of its levels and classes."""
    parts = [*document["levels"], *document["classes"]]
    return [document.keys(), *(part.keys() for part in parts), [part["traffic"] for part in parts]]


def whole(talks):
    """Each turn after the one before it, none left out."""
    return all(not row.turn or talks[row.index - 1].ended_s <= row.started_s for row in talks.values())


def test_conversations_stay_whole_over_the_nodes_and_are_those_of_a_local_run(env, cluster, engine):
    quick = ("--runs", 1, "--warm-up", "quick", "--max-tokens", 4, "--seed", 1, "--json")
    out, _ = sweep(env, cluster, engine, *TALKS, "--json")
    rows, facts = {row.index: row for row in stored(env)[1] if row.level}, stored(env)[2]
    alone_out = here(env, "sweep", "--url", engine.url, *quick, *TALKS)
    alone = {row.index: row for row in stored(env)[1] if row.level}
    assert rows.keys() == alone.keys() == set(range(24))
    assert whole(rows)
    assert {index: row.prompt for index, row in rows.items()} == {index: row.prompt for index, row in alone.items()}
    (told,) = [fact.fact["workers"] for fact in facts if fact.name == "workers"]
    assert len(told) == alive(cluster)
    assert all(one["requests"] % 3 == 0 for one in told)
    assert keys(json.loads(out)) == keys(json.loads(alone_out))


def test_classes_of_traffic_are_spread_with_their_agents_and_arrivals(env, cluster, engine, tmp_path):
    mix = tmp_path / "mix.toml"
    mix.write_text(MIX)
    words = ("classes", mix, "--url", engine.url, "--agents", 7, "--for", "2s", "--seed", 1, "--json")
    out, _ = bench(env, cluster, *words)
    run, rows, facts = stored(env)
    rows = [row for row in rows if row.level]
    alone_out = here(env, *words)
    alone = {row.index: row.prompt for row in stored(env)[1] if row.level and not row.turn}
    assert (run.kind, run.state) == ("classes", RunState.DONE)
    assert all(row.ok for row in rows)
    due = sorted(row.scheduled_s for row in rows if row.traffic == "hooks")
    assert [at - due[0] for at in due] == pytest.approx([n / 20 for n in range(40)], abs=0.1)  # two clocks
    assert whole({row.index: row for row in rows if row.traffic == "chat"})
    both = [row for row in rows if row.index in alone]
    assert {row.traffic for row in both} == {"chat", "hooks", "nightly"}
    assert all(row.prompt == alone[row.index] for row in both)
    (told,) = [fact.fact["workers"] for fact in facts if fact.name == "workers"]
    assert len(told) == alive(cluster)
    assert sum(one["requests"] for one in told) == len(rows)
    assert keys(json.loads(out)) == keys(json.loads(alone_out))


def test_two_endpoints_and_several_configurations_are_measured_by_the_same_workers(env, cluster, engine, tmp_path):
    how = ("--max-tokens", 4, "--runs", 2, "-c", 2, "--threshold", "99%")
    _, err = bench(env, cluster, "ab", engine.url, engine.url, *how)
    assert err.count("load from") == 1
    rows = f'[[config]]\nname = "a"\nurl = "{engine.url}"\n[[config]]\nname = "b"\nurl = "{engine.url}"\n'
    file = tmp_path / "m.toml"
    file.write_text(f"concurrency = [2]\nmax_tokens = 4\nruns = 1\n{rows}")
    out, err = bench(env, cluster, "matrix", file, "--json")
    assert err.count("load from") == 1
    assert all(cell["summary"]["levels"][0]["workers"]["number"] == 2 for cell in json.loads(out))
    wait_until(lambda: not load_processes())


# Ends


def test_a_worker_that_is_killed_in_a_mix_is_one_line_and_the_rest_is_kept_as_failed(env, cluster, tmp_path):
    """Also where stdout is to hold a JSON document: Ray's own words do not get there."""
    mix = tmp_path / "mix.toml"
    mix.write_text(MIX)
    with FakeEngine(slots=64) as engine:
        words = ("bench", "classes", mix, "--url", engine.url, "--agents", 7, "--for", "60s", "--json")
        process = started(env, *words, "--cluster", cluster.address)
        wait_until(lambda: engine.state()["requests"] > 60, 90)
        wait_until(lambda: any(row.level for row in stored(env)[1]))  # workers tell four times a second
        os.kill(load_processes()[0], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        engine.wait_for(running=0)
    assert (process.returncode, out) == (1, "")
    said = re.search(r"error: (the load worker on \S+ gave up: a load process ended by itself \(exit code -9\))\n", err)
    assert said, err
    run, rows, _ = stored(env)
    assert (run.state, run.error) == (RunState.FAILED, said[1])
    assert any(row.level for row in rows)
    wait_until(lambda: not load_processes())


def test_ctrl_c_ends_the_workers_and_keeps_what_was_measured(env, cluster):
    with FakeEngine(slots=64, token_ms=20) as engine:
        process = started(
            env, "bench", "sweep", "--url", engine.url, "-c", "4", "--tasks", 400, "--max-tokens", 10, "--fixed-output",
            "--warm-up", "quick", "--runs", 1, "--cluster", cluster.address,
        )  # fmt: skip
        wait_until(lambda: engine.state()["requests"] > 30, 60)
        assert load_processes()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        engine.wait_for(running=0)
    wait_until(lambda: not load_processes())
    run, rows, _ = stored(env)
    assert (run.state, run.error) == (RunState.FAILED, "interrupted")
    assert any(row.level for row in rows)


def test_a_node_that_is_lost_under_load_is_one_clear_error(env, cluster):
    node = cluster.add_node(num_cpus=1)
    number = alive(cluster)
    with FakeEngine(slots=64, token_ms=20) as engine:
        process = started(
            env, "bench", "sweep", "--url", engine.url, "-c", str(2 * number), "--tasks", 4000, "--max-tokens", 10,
            "--fixed-output", "--warm-up", "quick", "--runs", 1, "--processes", number, "--cluster", cluster.address,
        )  # fmt: skip
        wait_until(lambda: engine.state()["requests"] > 50, 90)
        cluster.remove_node(node, allow_graceful=False)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 1, (out, err)
        assert re.search(r"error: the load worker on \S+ was lost: it or its node died, or is not reached\n", err), err
        assert "Traceback" not in err
        engine.wait_for(running=0)
    wait_until(lambda: not load_processes())
    assert stored(env)[0].state is RunState.FAILED


# Bad input


def test_more_workers_than_free_cpus_are_refused_with_what_there_is(env, cluster, engine):
    _, err = sweep(env, cluster, engine, "-c", "9", "--processes", 9, check=1)
    assert f"the cluster has {alive(cluster)} CPUs free, 9 load workers take one each" in err
    assert f"hint: use --processes {alive(cluster)}" in err


def test_a_loopback_url_and_a_node_elsewhere_are_refused(env, cluster, engine):
    node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.3")
    try:
        _, err = sweep(env, cluster, engine, "-c", "2", "--processes", alive(cluster), check=2)
        assert "is this machine only, and workers are on 127.0.0.3" in err
    finally:
        cluster.remove_node(node)
    assert not user_paths(env).store.exists()


def test_a_node_whose_skep_is_another_is_said(env, cluster, engine, tmp_path):
    (tmp_path / "skep").mkdir()
    (tmp_path / "skep" / "__init__.py").write_text("__version__ = '0.0.1'\n")
    node = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        _, err = sweep(env, cluster, engine, "-c", "2", "--processes", alive(cluster), check=1)
        assert "has no skep that fits" in err
    finally:
        cluster.remove_node(node)


def test_no_cluster_at_the_address_is_said(env, engine):
    process = started(env, "bench", "sweep", "--url", engine.url, "--cluster", "127.0.0.1:1")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, "there is no cluster at 127.0.0.1:1" in err) == (1, True)
