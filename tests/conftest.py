"""What several suites share: folders of their own, commands in the process of the test, a gateway as a child."""

import asyncio
import contextlib
import gc
import inspect
import io
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

import skep
from forked_processes import ForkedProcess
from skep.cli.main import main
from skep.paths import user_paths
from skep.testing.process import FakeEngine, GatewayProcess

# How quick this machine is at the moment is no finding.
settings.register_profile("skep", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("skep")

FakeEngine.popen = ForkedProcess

gc.disable()  # collecting 9,000 tests makes no garbage; `pytest_collection_finish` enables it again


def pytest_collection_finish():
    """Freeze what the collected tests hold: a load collects garbage first, which takes a second with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a file to one worker, in their order: what is made once for its tests is made once."""
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


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
    kept = {
        key: value for key, value in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL")
    }
    for repo in ("org--model", "org--m"):  # two checkpoints, as the hub's client leaves them
        snapshot = tmp_path / "hf" / "hub" / f"models--{repo}" / "snapshots" / "c0ffee"
        snapshot.mkdir(parents=True)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("c0ffee")
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).write_text("{}")
    own = {**folders, "HF_HOME": str(tmp_path / "hf")}
    return {**kept, **own, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def run_main(args, env, folder):
    """`skep ARGS...` in this process, as in one of its own: environment, folder, standard files, exit code."""
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, errors or None, write_through=True) for _ in range(2))
    before, argv = dict(os.environ), sys.argv
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [str(Path(skep.__file__).parent / "__main__.py"), *args]
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(action="ignore", category=ResourceWarning),  # a hive outlives the command
        ):
            try:
                code = main()
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(["skep", *args], code, *(one.buffer.getvalue().decode() for one in (out, err)))


@pytest.fixture(name="skep")
def run_skep(env, tmp_path):
    """Runs `skep ARGS...` to its end, in an empty folder. Whatever still runs afterwards is stopped."""

    def run(*args, check=None, timeout=None, **extra_env):
        done = run_main([*map(str, args)], {**env, **extra_env}, tmp_path)
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

    def serve_engines(self, *engines, slots=2, model="fake-model", confirms="slots", models=()):
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
