"""`skep` in the process of the test, with folders of its own."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import skep
from skep.cli.main import main
from skep.paths import user_paths


def environment(folder):
    """An installation of its own; only the weights' cache is the user's, so that nothing is
    fetched twice.
    """
    folders = {
        f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "DATA", "STATE")
    }
    variables = {
        key: value
        for key, value in os.environ.items()
        if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL")
    }
    for repo in ("org--model", "org--m"):  # two checkpoints, as the hub's client leaves them
        snapshot = folder / "hf" / "hub" / f"models--{repo}" / "snapshots" / "c0ffee"
        snapshot.mkdir(parents=True)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("c0ffee")
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).write_text("{}")
    settings = {**folders, "HF_HOME": str(folder / "hf")}
    return {**variables, **settings, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def run_main(args, env, folder):
    """`skep ARGS...` in this process, as in one of its own: environment, folder, standard files,
    exit code.
    """
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding, errors or None, write_through=True)
        for _ in range(2)
    )
    before = dict(os.environ)
    argv = sys.argv
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [str(Path(skep.__file__).parent / "__main__.py"), *args]
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(
                action="ignore", category=ResourceWarning
            ),  # a hive outlives the command
        ):
            try:
                code = main()
            except SystemExit as exit_:
                if isinstance(exit_.code, int):
                    code = exit_.code
                else:
                    code = int(exit_.code is not None)
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(
        ["skep", *args], code, *(stream.buffer.getvalue().decode() for stream in (out, err))
    )


def eventually(check, timeout_s=20):
    """What it finds: asked again and again, for what another process announces to nobody."""
    deadline = time.monotonic() + timeout_s
    while not (result := check()):
        assert time.monotonic() < deadline, check
        time.sleep(0.02)
    return result


@contextlib.contextmanager
def running_skep(env, folder):
    """Runs `skep ARGS...` to its end, in that folder.

    Whatever still runs afterwards is stopped.
    """

    def run(*args, check=None, timeout=None, **extra_env):
        done = run_main([*map(str, args)], {**env, **extra_env}, folder)
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    yield run
    if user_paths(env).lock.exists():  # a hive was started here
        run("down", "--wait", "0s")
    # Left by a skep that a test has killed.
    shutil.rmtree(user_paths(env).runtime, ignore_errors=True)
