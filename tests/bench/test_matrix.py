"""Configurations one after the other: started and stopped, measured, taken from a store, or failed."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import urllib.request

import pytest

from skep.bench.matrix import MatrixConfig, MatrixResult, parse_matrix, run_matrix, started
from skep.bench.metrics import SweepSummary
from skep.errors import EngineError, SkepError, UserError
from skep.testing.process import FakeEngine

SUMMARY = SweepSummary("r", (), None, None, None, client_limited=False)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fake(*options, **fields):
    port = free_port()
    command = " ".join([sys.executable, "-m", "skep.testing.fake_engine", f"--port={port}", *options])
    return MatrixConfig(fields.pop("name", "fake"), url=f"http://127.0.0.1:{port}", start=command, **fields)


def state(url):
    with urllib.request.urlopen(f"{url}/fake/state", timeout=5) as answer:
        return json.load(answer)


def matrix(configs, tmp_path, measure=None, load=None):
    said = []

    async def measured(_):
        return SUMMARY

    async def run():
        return await run_matrix(configs, measure or measured, load or (lambda _: SUMMARY), tmp_path, said.append)

    return asyncio.run(run()), said


# As it is written


def test_a_configuration_is_an_endpoint_a_command_or_a_stored_run():
    entries = [
        {"name": "a", "url": "http://h:1", "model": "m", "key_env": "KEY"},
        {"name": "b", "url": "http://h:2", "start": "serve -x", "ready_within": "90s", "env": {"GPU": 1}},
        {"name": "c", "run": "last"},
    ]
    a, b, c = parse_matrix({"config": entries})
    assert (a.url, a.model, a.key_env, a.start) == ("http://h:1", "m", "KEY", None)
    assert (b.start, b.ready_within_s, b.env) == ("serve -x", 90.0, {"GPU": "1"})
    assert (c.run, c.url) == ("last", None)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({}, "`name` is missing"),
        ({"name": ""}, "`name` must be a text"),
        ("x", "has no name"),
        ({"name": "a"}, "needs a url or a run"),
        ({"name": "a", "url": "u", "run": "r"}, "needs a url or a run"),
        ({"name": "a", "start": "x"}, "needs a url or a run"),
        ({"name": "a", "url": "u", "start": " "}, "`start` must be a text that is not blank"),
        ({"name": "a", "url": "u", "gpus": 2}, "`gpus` is not known"),
        ({"name": "a", "url": 5}, "configuration 1: `url` must be a text .*, not `5`"),
        ({"name": "a", "url": "u", "ready_within": "soon"}, "not a duration"),
        *[({"name": "a", "url": "u", "env": env}, "`env`") for env in ("GPU=1", 5, ["GPU"])],
    ],
)
def test_what_is_no_configuration_is_one_line_with_a_way_out(entry, told):
    with pytest.raises(UserError, match=told) as caught:
        parse_matrix({"config": [entry]})
    assert caught.value.hint


def test_names_are_given_once_and_there_must_be_one():
    with pytest.raises(UserError, match="two configurations are called `a`"):
        parse_matrix({"config": [{"name": "a", "run": "x"}, {"name": "a", "run": "y"}]})
    for empty in ({}, {"config": []}, {"config": "a"}):
        with pytest.raises(UserError, match="names no configuration"):
            parse_matrix(empty)


# Cells


def test_a_stored_run_is_taken_an_endpoint_is_measured_and_a_failed_cell_keeps_its_place_with_the_reason(tmp_path):
    measured = []

    def load(run):
        if run == "gone":
            raise UserError("no run `gone`", hint="`skep runs`")
        return SUMMARY

    async def measure(config):
        measured.append(config.name)
        if config.name == "down":
            raise SkepError("it cannot be reached")
        return SUMMARY

    configs = [MatrixConfig("old", run="abc"), MatrixConfig("lost", run="gone")]
    configs += [MatrixConfig("down", url="http://h:1"), MatrixConfig("up", url="http://h:2")]
    cells, said = matrix(configs, tmp_path, measure, load)
    assert [cell.diagnosis for cell in cells] == [None, "no run `gone`", "it cannot be reached", None]
    assert (cells[0].summary, cells[3]) == (SUMMARY, MatrixResult(configs[3], SUMMARY))
    assert (measured, all(cell.boot_s is None for cell in cells), len(said) >= 4) == (["down", "up"], True, True)


def test_what_is_started_answers_while_it_is_measured_and_is_gone_afterwards(tmp_path):
    config, seen = fake("--load-s=0.2"), []

    async def measure(config):
        seen.append(await asyncio.to_thread(state, config.url))
        return SUMMARY

    (cell,), _ = matrix([config], tmp_path, measure)
    assert cell.summary is SUMMARY
    assert cell.boot_s > 0.2
    assert seen
    with pytest.raises(OSError):
        state(config.url)


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (f"{sys.executable} -c \"import os, sys; print(os.environ['RIG']); sys.exit(3)\"", "exit code 3: two of them"),
        ("sh -c 'echo loading; sleep 600'", "it did not answer within 0.5 s: loading"),
        ("no-such-program --x", "cannot be started"),
        ("unbalanced 'quote", "is not a command"),
    ],
    ids=["ends", "does not answer in time", "does not exist", "cannot be read"],
)
def test_a_command_that_cannot_be_measured_is_told_with_its_last_words(tmp_path, start, told):
    """The environment of the configuration reaches it."""
    within_s = 0.5 if "sleep" in start else 60.0
    url, env = f"http://127.0.0.1:{free_port()}", {"RIG": "two of them"}
    (cell,), said = matrix([MatrixConfig("odd", url=url, start=start, ready_within_s=within_s, env=env)], tmp_path)
    assert cell.summary is None
    assert cell.diagnosis
    assert told in cell.diagnosis
    assert cell.diagnosis in said[-1]


def test_a_server_that_was_there_before_is_not_measured_in_anothers_place(tmp_path):
    """The command cannot have the port; the old server's figures would stand under the new name."""
    with FakeEngine() as old:
        command = f"{sys.executable} -m skep.testing.fake_engine --port={old.port}"
        (cell,), _ = matrix([MatrixConfig("new", url=old.url, start=command)], tmp_path)
    assert cell.summary is None


# Stopping


def run_started(config, folder):
    """State of the engine while it ran."""

    async def run():
        async with started(config, folder):
            return await asyncio.to_thread(state, config.url)

    return asyncio.run(run())


def test_children_of_the_command_go_with_it_and_grandchildren_that_left_the_group_too(tmp_path):
    """As a shell script that starts an engine, whose workers hold the GPU's memory."""
    script, engine = tmp_path / "serve.sh", fake("--grandchild")
    script.write_text(f"#!/bin/sh\n{engine.start}\ntrue\n")
    script.chmod(0o755)
    (pid,) = run_started(MatrixConfig("script", url=engine.url, start=str(script)), tmp_path)["grandchildren"]
    with pytest.raises(OSError):
        state(engine.url)
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        ended, _, _ = select.select([handle], [], [], 10)  # a killed process takes a moment
        os.close(handle)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        assert ended


def test_an_address_that_is_none_stops_what_was_started(tmp_path):
    config = MatrixConfig("odd", url="http://[", start=f'{sys.executable} -c "import time; time.sleep(600)"')
    with pytest.raises((UserError, EngineError)):
        run_started(config, tmp_path)
