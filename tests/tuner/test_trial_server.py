"""A configuration served for a while: in folders of its own, and gone without a trace however it
ends.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trial_presets import PLAIN, pids_of, preset_of, with_words

from skep.bench.endpoint import find_endpoint
from skep.engines.base import Diagnosis
from skep.engines.diagnosis import rule_file
from skep.files import lock_holder
from skep.paths import user_paths
from skep.tuner.records import ConfigFailed
from skep.tuner.trial_server import TrialServers, failure_of
from skep.wire.client import WireFailure, fetch_once
from skep.wire.heads import parse_url

SERVES = """
import asyncio, os, sys
from pathlib import Path
from skep.paths import user_paths
from skep.tuner.trial_server import TrialServers
from trial_presets import preset_of, with_words

async def main():
    servers = TrialServers(user_paths(os.environ), Path(sys.argv[1]))
    async with servers.open(preset_of(with_words("--grandchild"))) as served:
        print(served.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def paths(env):
    return user_paths(env)


@pytest.fixture
def servers(paths, tmp_path):
    yield TrialServers(paths, tmp_path / "work")
    assert not pids_of(str(tmp_path / "work")), "something was left running"


async def not_started(servers, config):
    with pytest.raises(ConfigFailed) as caught:
        async with servers.open(preset_of(config)):
            pass
    return caught.value.failure


async def until(check):
    async with asyncio.timeout(20):
        while not (answer := check()):
            await asyncio.sleep(0.02)  # asking another process: there is no event to await
    return answer


def test_it_serves_beside_the_users_own(servers, paths):
    async def run():
        async with servers.open(preset_of(PLAIN)) as served:
            assert served.start_s > 0
            assert served.trouble() is None
            assert (await find_endpoint(served.url, served.model)).model == "fake-model"
            assert lock_holder(paths.lock) is None

    asyncio.run(run())
    assert not paths.store.exists()
    assert not paths.runtime.exists()


def test_it_leaves_no_process_and_no_file(servers, tmp_path):
    work = tmp_path / "work"

    async def run():
        async with servers.open(preset_of(PLAIN)):
            assert len(pids_of(str(work))) >= 2
        assert not pids_of(str(work))

    asyncio.run(run())
    assert list(work.iterdir()) == []


def test_what_does_not_start_is_told_with_its_log_and_tried_once(servers, tmp_path):
    failure = asyncio.run(
        not_started(servers, with_words("--crash-at-start", "CUDA error: out of memory"))
    )
    assert failure.kind == "out-of-memory"
    assert "out of memory" in str(failure)
    logs = (tmp_path / "work").rglob("fake-model-0.log")
    assert [path.read_text().count("started, pid") for path in logs] == [1]
    refused = asyncio.run(not_started(servers, PLAIN.turned({"slots": 0})))
    assert refused.kind == "refused"
    assert refused.remedy


@pytest.mark.slow
def test_an_engine_that_dies_later_is_trouble_and_is_not_started_again(servers, tmp_path):
    async def run():
        async with servers.open(preset_of(PLAIN.turned({"replicas": 2}))) as served:
            running = ((pid, words(pid)) for pid in pids_of(str(tmp_path / "work")))
            engine = next(
                pid
                for pid, command_line in running
                if "fake_engine" in command_line and "process_guard" not in command_line
            )
            os.kill(engine, signal.SIGSEGV)
            failure = await until(served.trouble)
            assert failure.kind == "crash-under-load"
            assert "SIGSEGV" in str(failure)

    asyncio.run(run())


@pytest.mark.slow
def test_one_that_never_becomes_healthy_hangs(paths, tmp_path):
    servers = TrialServers(paths, tmp_path / "work", start_deadline_s=1.0)
    failure = asyncio.run(not_started(servers, with_words("--load-s", "60")))
    assert failure.kind == "hang"
    assert "within 1 s" in failure.cause
    assert not pids_of(str(tmp_path / "work"))


@pytest.mark.slow
@pytest.mark.parametrize("ready", [False, True])
def test_a_cancelled_one_leaves_nothing(servers, tmp_path, ready):
    async def serve(up):
        async with servers.open(
            preset_of(with_words("--grandchild", "--load-s", "0" if ready else "60"))
        ):
            up.set()
            await asyncio.Event().wait()

    async def run():
        up = asyncio.Event()
        serving = asyncio.create_task(serve(up))
        if ready:
            await up.wait()
        else:
            await until(
                lambda: any("fake_engine" in words(pid) for pid in pids_of(str(tmp_path / "work")))
            )
        serving.cancel()
        await asyncio.wait({serving})
        assert serving.cancelled()
        assert not pids_of(str(tmp_path / "work"))
        assert list((tmp_path / "work").iterdir()) == []

    asyncio.run(run())


@pytest.mark.slow
def test_when_the_tuner_is_killed_its_engines_end_by_themselves(env, tmp_path):
    with_path = {**env, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", SERVES, tmp_path / "work"]
    with subprocess.Popen(command, env=with_path, stdout=subprocess.PIPE, text=True) as child:
        url = child.stdout.readline().strip()
        assert url
        child.kill()
    asyncio.run(until(lambda: not pids_of(str(tmp_path / "work"))))
    with pytest.raises(WireFailure):
        asyncio.run(fetch_once(parse_url(url)[0], "GET", "/v1/models", timeout_s=2.0))
    assert not user_paths(env).runtime.exists()


def words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("cause", "evidence", "remedy", "under_load", "kind"),
    [
        ("out of GPU memory while CUDA graphs were captured", None, None, False, "out-of-memory"),
        (
            "no room in the KV cache for one request of 32768 tokens",
            None,
            "raise memory_share",
            False,
            "out-of-memory",
        ),
        ("it died", "torch.OutOfMemoryError: CUDA out of memory.", None, True, "out-of-memory"),
        (
            "it died",
            "CUDA error: an illegal memory access was encountered",
            None,
            True,
            "crash-under-load",
        ),
        ("an illegal memory access", None, None, False, "no-start"),
    ],
)
def test_a_death_is_told_by_its_log_and_by_when_it_came(cause, evidence, remedy, under_load, kind):
    failure = failure_of(Diagnosis(cause, evidence, remedy), under_load=under_load)
    assert (failure.kind, failure.evidence, failure.remedy) == (kind, evidence, remedy)
    assert ("under load" in failure.cause) == under_load


def test_every_rule_that_is_about_running_out_is_told_as_such():
    causes = [
        rule.cause
        for rule in rule_file().rules
        if "out of GPU memory" in rule.cause or "no memory" in rule.cause
    ]
    assert len(causes) > 10
    assert {failure_of(Diagnosis(cause), under_load=False).kind for cause in causes} == {
        "out-of-memory"
    }
