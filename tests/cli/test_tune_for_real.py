"""A whole climb on the embedded engine: stopped in the middle, resumed, and its best served as a preset."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from skep.config.presets import preset, presets_folder
from skep.paths import user_paths

LOAD = ("--goal", "effective_tok_s@2", "--input-tokens", "64", "--output-tokens", "16", "--quality", "off")
BAD_START = ("--knobs", "slots,threads", "--set", "slots=1,threads=1")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_climb_on_a_real_engine_is_stopped_resumed_and_leaves_a_preset(env, tmp_path, skep):
    """Nothing runs after Ctrl-C, and the second session measures nothing again that was measured."""
    words = ("smollm2-135m", *LOAD, *BAD_START, "--budget", "12m", "--seed", "5")
    command = [sys.executable, "-m", "skep", "tune", *words]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as climbing:
        next(line for line in climbing.stderr if line.startswith("the baseline, start 2"))
        climbing.send_signal(signal.SIGINT)
        said = climbing.stderr.read()
    assert climbing.returncode == 130, said
    assert not engines_of(tmp_path)
    resumed = skep("tune", "resume", "--json", timeout=1500)
    assert resumed.returncode == 0, resumed.stderr
    assert "1 answers and 0 stages are there already" in resumed.stderr
    told = json.loads(resumed.stdout)
    assert told["baseline"]["config"] == {"slots": 1, "threads": 1}
    assert told["baseline"]["starts"] == 2
    assert told["curve"]
    assert not engines_of(tmp_path)
    if told["best"]["number"]:
        (name,) = told["presets"]
        found = preset(name, presets_folder(user_paths(env)))
        assert found.published[0].tok_s == pytest.approx(told["best"]["figure"]["estimate"])


def engines_of(folder):
    """Processes that were started with folders of this test."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(folder) in (place / "environ").read_bytes() and place.name != str(os.getpid()):
                found.append(place.name)
    return found


def test_a_preset_that_does_not_start_is_told_and_nothing_is_tuned(skep, env):
    """The diagnosis in one line; the tuning that was begun has no stage."""
    folder = presets_folder(user_paths(env))
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text(
        'title = "broken"\nengine = "embedded"\nmodel = "smollm2-135m"\ncheckpoint = "/no/such/file.gguf"\n'
        'hardware = "cpu"\nsource = "a test"\nslots = 1\n'
    )
    done = skep("tune", "broken", *LOAD, check=1)
    assert "error: nothing was tuned, the baseline refused before the start: " in done.stderr
    assert "/no/such/file.gguf" in done.stderr
    (row,) = json.loads(skep("tune", "ls", "--json", check=0).stdout)
    assert row["stages"] == 0
    assert "the baseline refused before the start: " in skep("tune", "show", check=0).stdout
    assert "the baseline does not run" in skep("tune", "ls", check=0).stdout
    assert list(folder.iterdir()) == [folder / "broken.toml"]
