"""Where programs are found, what version they have, which flags they know."""

import argparse
import os
import stat
import sys
from pathlib import Path

import pytest

from skep.engines import discovery
from skep.engines.discovery import (
    find_program,
    parse_flags,
    parse_version,
    remembered_flags,
    unknown_flags,
    version_of,
)
from skep.errors import UserError

ENGINES = {"vllm": "vllm", "llamacpp": "llama-server", "ollama": "ollama", "sglang": "sglang"}
NOWHERE = {"PATH": "/nowhere"}


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_is_not_installed_is_said_with_how_to_install_it(engine):
    if Path(sys.executable).with_name(ENGINES[engine]).exists():
        pytest.skip("it stands beside this interpreter")
    with pytest.raises(UserError, match="is not installed") as caught:
        find_program(engine, environ=NOWHERE)
    assert "install" in caught.value.hint
    assert "binary" in caught.value.hint


def test_the_launchs_program_goes_before_the_variables_and_that_before_the_path(tmp_path):
    folders = [tmp_path / name for name in ("given", "variable", "path")]
    for folder in folders:
        folder.mkdir()
        script(folder / "llama-server", "#!/bin/sh\n")
    environ = {"PATH": str(folders[2]), "SKEP_LLAMA_SERVER": str(folders[1] / "llama-server")}
    assert (
        find_program("llamacpp", str(folders[0] / "llama-server"), environ).path.parent
        == folders[0]
    )
    assert find_program("llamacpp", None, environ).path.parent == folders[1]
    assert find_program("llamacpp", None, {"PATH": str(folders[2])}).path.parent == folders[2]
    with pytest.raises(UserError, match=r"no program `/gone` \(binary\)"):
        find_program("llamacpp", "/gone", environ)


def test_the_version_of_a_script_is_asked_of_the_interpreter_that_runs_it(tmp_path):
    """Nothing of the engine is imported."""
    python = script(
        tmp_path / "python3", '#!/bin/sh\n[ "$1" = -c ] && [ "$3" = vllm ] && echo 0.19.1\n'
    )
    vllm = script(tmp_path / "vllm", f"#!{python}\nimport vllm\n")
    program = find_program("vllm", str(vllm))
    assert program.argv == (str(vllm), "serve")
    assert version_of(program) == "vllm 0.19.1"
    long = script(tmp_path / "long", f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n")
    assert version_of(find_program("vllm", str(long))) == "vllm 0.19.1"


def test_a_program_that_does_not_tell_has_no_version_and_no_flags(tmp_path):
    for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\necho gibberish\n", "not a program"):
        program = find_program("llamacpp", str(script(tmp_path / "llama-server", text)))
        assert version_of(program) is None
        assert discovery.known_flags(program, tmp_path / "cache") is None


def test_sglang_is_a_module_of_an_interpreter(tmp_path):
    python = script(tmp_path / "python3", "#!/bin/sh\n")
    assert find_program("sglang", str(python)).argv == (str(python), "-m", "sglang.launch_server")
    entry = script(tmp_path / "sglang", f"#!{python}\n")
    assert find_program("sglang", str(entry)).argv == (str(python), "-m", "sglang.launch_server")
    # Where it is only printed.
    assert discovery.bare_words("sglang") == (
        "python",
        "-m",
        "sglang.launch_server",
    )
    assert discovery.bare_words("vllm", "/opt/vllm") == ("/opt/vllm", "serve")


@pytest.mark.parametrize(
    ("engine", "output", "version"),
    [
        (
            "llamacpp",
            "version: 11434 (1a2b3c4)\nbuilt with cc for x86_64\n",
            "llama.cpp b11434-1a2b3c4",
        ),
        (
            "llamacpp",
            "version: 0.6.0-dev (build 11434, commit 1a2b3c4)\nbuilt with GNU\n",
            "llama.cpp b11434-1a2b3c4",
        ),
        ("ollama", "ollama version is 0.24.3\n", "ollama 0.24.3"),
        (
            "ollama",
            "ollama version is 0.20.0\nWarning: client version is 0.24.3\n",
            "ollama 0.24.3",
        ),
        ("ollama", "gibberish", None),
    ],
)
def test_what_programs_print_for_their_version(engine, output, version):
    assert parse_version(engine, output) == version


LLAMA_HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-fa,   --flash-attn [on|off|auto]       set Flash Attention use \
('on', 'off', or 'auto', default: 'auto')
--slots, --no-slots                     expose slots monitoring endpoint, \
see --props (default: enabled)
-sm,   --split-mode {none,layer,row,tensor}
                                        how to split the model across multiple GPUs, \
see --tensor-split-not-listed
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
--spec-draft-n-max N                    number of tokens to draft \
for speculative decoding (default: 3)
"""


def test_flags_are_read_from_llama_servers_help_without_those_it_has_removed():
    assert parse_flags(LLAMA_HELP) == {
        "-h",
        "--help",
        "--usage",
        "-fa",
        "--flash-attn",
        "--slots",
        "--no-slots",
        "-sm",
        "--split-mode",
        "--spec-draft-n-max",
    }


def test_flags_are_read_from_argparses_help():
    parser = argparse.ArgumentParser(prog="vllm serve")
    parser.add_argument(
        "--tensor-parallel-size", "-tp", help="long words " * 30 + "--not-this-one"
    )
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8", "turboquant-3bit"])
    assert parse_flags(parser.format_help()) == {
        "-h",
        "--help",
        "--tensor-parallel-size",
        "-tp",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--kv-cache-dtype",
    }


def test_an_unknown_flag_is_named_with_the_nearest_known_one():
    known_flags = frozenset(
        {"--max-num-seqs", "--enable-prefix-caching", "--speculative-config", "-tp"}
    )
    words = [
        "--max-num-seq=4", "--no-enable-prefix-caching", "--speculative-config.method", "mtp",
        "--max_num_seqs", "--enforce-eagr", "-1", "-O3", "--",
    ]  # fmt: skip
    assert list(unknown_flags("vllm", words, known_flags)) == [("--enforce-eagr", None)]
    assert list(unknown_flags("llamacpp", ["--max-num-seq"], known_flags)) == [
        ("--max-num-seq", "--max-num-seqs")
    ]


def test_help_is_asked_once_for_a_program_and_its_version(tmp_path):
    flags = "\n".join(f"--flag-{n} N    words" for n in range(20))
    said = (
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\ncat <<'END'\nversion: 1 (abc)\n{flags}\nEND\n"
    )
    program = find_program("llamacpp", str(script(tmp_path / "llama-server", said)))
    lines = []
    version_of(program)
    questions = (tmp_path / "asked").read_text().count("asked")
    for _ in range(3):
        assert "--flag-7" in discovery.known_flags(program, tmp_path / "cache", lines.append)
    assert (tmp_path / "asked").read_text().count("asked") == questions + 1
    assert len(lines) == 1
    assert remembered_flags(program, tmp_path / "cache") is not None
    os.utime(program.path, ns=(1, 1))
    assert remembered_flags(program, tmp_path / "cache") is None
    (tmp_path / "file").write_text("no folder")  # a cache that can neither be written nor read
    assert "--flag-3" in discovery.known_flags(program, tmp_path / "file")
