"""What several suites share: folders of their own, commands in the process of the test, a gateway
as a child.
"""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from commands import environment, running_skep
from forked_processes import ForkedProcess
from needed_programs import bare_path, lack_of
from skep.store.database import open_store
from skep.supervisor import hive_process
from skep.testing.process import FakeEngine, GatewayProcess

# How quick this machine is at the moment is no finding.
settings.register_profile(
    "skep", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("skep")

FakeEngine.popen = ForkedProcess
hive_process.subprocess = SimpleNamespace(  # of `skep up -d`
    Popen=ForkedProcess, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)

# collecting 9,000 tests makes no garbage; `pytest_collection_finish` enables it again
gc.disable()


def pytest_collection_finish():
    """Freeze what the collected tests hold: a load collects garbage first, which takes a second
    with them.
    """
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)  # the default takes a tenth of all time here
    gc.enable()


FURNISHED_PATH = os.environ["PATH"]
BARE_PATH = pytest.StashKey[str]()
FURNISHED_MARKS = {"needs", "browser", "ray"}
LEFT_OUT = "needs what is not here: "


def pytest_configure(config):
    """Make the PATH without what only some tests need, once for all workers."""
    # A shell without job control has its background jobs ignore Ctrl-C, and their children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        config.stash[BARE_PATH] = config.workerinput["bare_path"]
        return
    folder = tempfile.TemporaryDirectory(prefix="skep-bare-path-")
    config.add_cleanup(folder.cleanup)
    Path(folder.name).chmod(0o755)  # some tests start programs as another user
    config.stash[BARE_PATH] = bare_path(FURNISHED_PATH, Path(folder.name))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["bare_path"] = node.config.stash[BARE_PATH]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Give each test its PATH, before any fixture; leave it out where a program that it needs is
    missing.
    """
    marks = {mark.name for mark in item.iter_markers()}
    os.environ["PATH"] = (
        FURNISHED_PATH if marks & FURNISHED_MARKS else item.config.stash[BARE_PATH]
    )
    for mark in item.iter_markers("needs"):
        lack = lack_of(*mark.args)
        if lack is not None:
            pytest.skip(LEFT_OUT + lack)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """Say in the last lines what was left out, and the command that installs what it needs."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = (report.longrepr[2].partition(LEFT_OUT) for report in reports)
    counts = Counter(lack for _, is_missing, lack in reasons if is_missing)
    for lack, count in counts.items():
        terminalreporter.write_line(f"left out {count} tests: {lack}")


class ByFile(LoadFileScheduling):
    """A file goes to one worker: what is made once for its tests is made once.

    So do the files that use the makers' clients of the gateway, and those of MCP's: to load them
    takes seconds."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        folder = str(Path(file).parent)
        if folder == "tests/mcp" or (folder == "tests/gateway" and uses_clients(file)):
            return folder
        return file


@cache
def uses_clients(file):
    return "api_clients" in (Path(__file__).parent.parent / file).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # in the order of the files
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function: by its `start_loop`, `START_LOOP` of its module, or
    `asyncio.run`.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    of_module = getattr(pyfuncitem.module, "START_LOOP", asyncio.run)
    run = pyfuncitem.funcargs.get("start_loop", of_module)
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


@pytest.fixture(name="skep")
def run_skep(env, tmp_path):
    with running_skep(env, tmp_path) as run:
        yield run


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite3") as opened:
        yield opened


class GatewayOfFakes(GatewayProcess):
    """A gateway process in front of fake engines, named r0, r1, ..."""

    def serve_engines(self, *engines, slots=2, model="fake-model", confirms="slots", models=()):
        common = {"model": model, "slots": slots, "confirms": confirms}
        self.serve(
            [{"name": f"r{i}", "url": engine.url, **common} for i, engine in enumerate(engines)],
            models,
        )


@pytest.fixture
def start_gateway(tmp_path):
    """Start gateways; they end with the test."""
    started = []

    def start(**setup):
        started.append(GatewayOfFakes(tmp_path / f"gateway-{len(started)}.log", **setup))
        return started[-1]

    yield start
    for process in started:
        process.close()
    for log in tmp_path.glob("gateway-*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
