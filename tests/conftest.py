"""What several suites share: folders of their own, a command line run as a child, a gateway as a child."""

import asyncio
import inspect
import os
import shutil
from functools import cache

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from forked_cli import Forked
from skep.paths import user_paths
from skep.testing.gateway_process import GatewayProcess

# How quick this machine is at the moment is no finding.
settings.register_profile("skep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("skep")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function: by its `start_loop`, `START_LOOP` of its module, or `asyncio.run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    of_module = getattr(pyfuncitem.module, "START_LOOP", asyncio.run)
    run = pyfuncitem.funcargs.get("start_loop", of_module)
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def env(tmp_path):
    """An installation of its own; only the weights' cache is the user's, so that nothing is fetched twice."""
    folders = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "STATE")}
    kept = {key: value for key, value in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY")}
    return {**kept, **folders, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


# Turning the tree of commands into click's takes 0.1 s, and it is the same tree for every call of a test.
typer.testing._get_command = cache(typer.testing._get_command)


@pytest.fixture(scope="session")
def forked():
    process = Forked()
    yield process
    process.close()


@pytest.fixture
def skep(env, tmp_path, forked):
    """Runs `skep ARGS...` to its end, in an empty folder. Whatever still runs afterwards is stopped."""

    def run(*args, timeout=60, check=None, **extra_env):
        done = forked.run([*map(str, args)], env={**env, **extra_env}, cwd=tmp_path, timeout=timeout)
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    yield run
    if user_paths(env).lock.exists():  # a hive was started here
        run("down", "--wait", "0s")
    shutil.rmtree(user_paths(env).runtime, ignore_errors=True)  # left by a skep that a test has killed


class GatewayOfFakes(GatewayProcess):
    """A gateway process in front of fake engines, named r0, r1, ..."""

    def serve_engines(self, *engines, slots=2, model="fake-model", confirms=True, models=()):
        common = {"model": model, "slots": slots, "confirms": confirms}
        self.serve([{"name": f"r{i}", "url": engine.url, **common} for i, engine in enumerate(engines)], models)


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
