"""Folders for commands in the process of the test, and hives of fake engines."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from skep.paths import user_paths

HIVE = 'start_deadline = "20s"\ndrain = "10s"\n'
CAPTURED = Path(__file__).parent.parent / "host" / "captured" / "3090x2-nvlink"
SMI = f"""#!/bin/sh
case "$1" in
--query-gpu=index,memory*) printf 'index, memory.total, memory.used\\n0, 24576, 300\\n1, 24576, 300\\n' ;;
--query-gpu=*) cat "{CAPTURED}/query.csv" ;;
topo) cat "{CAPTURED}/topo.txt" ;;
*) cat "{CAPTURED}/header.txt" ;;
esac
"""


def vllm_program(first=""):
    """A vLLM that is none: it knows vLLM's flags, does `first`, and becomes the fake engine."""
    return f"""#!{sys.executable}
import os, sys
words = sys.argv
if "--help" in " ".join(words):
    print("  --served-model-name --port --host --max-num-seqs --max-model-len --gpu-memory-utilization --dtype --seed")
    print("  --kv-cache-dtype --tensor-parallel-size --language-model-only --speculative-config --block-size")
    print("  --swap-space --enforce-eager --quantization --load-format --tokenizer --disable-custom-all-reduce")
    sys.exit(0)
value = lambda flag: words[words.index(flag) + 1]
{first}
own = ["--model", value("--served-model-name"), "--slots", value("--max-num-seqs"), "--port", value("--port")]
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "skep.testing.fake_engine", "--token-ms", "1", *own])
"""


@pytest.fixture
def paths(env, monkeypatch, tmp_path):
    """An installation of its own for commands that are called in this process, in an empty folder."""
    for name in ("XDG_RUNTIME_DIR", "SKEP_API_KEY", "SKEP_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return user_paths(os.environ)


@pytest.fixture
def programs(paths, tmp_path, monkeypatch):
    """The folder with all programs that are found: none but the shell's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{Path(shutil.which('sh')).parent}")
    return folder


@pytest.fixture
def two_3090s(programs):
    program = programs / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)


@pytest.fixture
def configure(tmp_path):
    """Writes skep.toml: tables of [[serve]] with a fake engine, and what stands before and under [gateway]."""

    def write(*tables, gateway="", head=HIVE):
        text = [head, "[gateway]\nport = 0\n", gateway]
        for table in tables or ({},):
            values = {"model": "fake-model", "engine": "fake", "slots": 2, **table}
            text += ["[[serve]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        (tmp_path / "skep.toml").write_text("\n".join(text) + "\n")

    return write


@pytest.fixture
def up(skep):
    """Starts the hive of skep.toml, and gives what it tells when it is ready."""
    return lambda *args, **env: json.loads(skep("up", "-d", "--json", *args, check=0, **env).stdout)
