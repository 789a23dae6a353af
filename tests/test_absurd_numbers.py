"""Numbers that nobody means, in every place where skep reads them: one clear line, or a fact that
is not known.
"""

import re

import pytest

from commands import environment, running_skep
from skep.catalog.gpus import rig_parts
from skep.catalog.presets import RunEnvironment, missing_needs
from skep.config.keys import read_keys
from skep.config.load import load_settings
from skep.config.presets import find_preset, read_preset
from skep.config.rigs import parse_rig
from skep.errors import UserError
from skep.host.facts import (
    count_busy_cores,
    parse_counters,
    parse_cpu_max,
    parse_cuda_version,
    parse_gpus,
    parse_links,
    read_nvidia,
)
from skep.paths import user_paths
from skep.units import MIB, parse_bytes, parse_percent, parse_seconds, parse_share

DIGITS = "9" * 5000
MANY = "9" * 400
COLUMNS = (
    "index, name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max, power.limit [W]\n"
)


def settings_of(tmp_path, text):
    path = tmp_path / "skep.toml"
    path.write_text(text)
    return load_settings(path, user_paths({}), {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[gateway]\nworkers = {DIGITS}", "line 2: `workers` = 9999"),
        (
            f"[gateway]\nworkers = 0x{'f' * 6000}",
            "`gateway.workers` = a number of more than 77 digits",
        ),
        ("[gateway]\nworkers = 1e999", "`gateway.workers` = inf: must be a whole number"),
        ("[gateway]\nworkers = nan", "`gateway.workers` = nan: must be a whole number"),
        ("[gateway]\nworkers = -1", "`gateway.workers` = -1: must be at least 1"),
        (f"[gateway]\nworkers = {MANY}", "must be at most 64"),
        (f"[monitor]\nttft = '{DIGITS}s'", "`monitor.ttft`: `999"),
        (f"[monitor]\ndisk_free = '{MANY}GB'", "is too large a size"),
        ("[monitor]\nslower = '1e999'", "`monitor.slower` = `1e999` is not a share"),
        (f"[[serve]]\nmodel = 'x'\nroom = '{DIGITS}GB'", "`serve.room`: `999"),
        (f"a = {'[' * 5000}{']' * 5000}", "it is nested too deeply"),
        ("# " + "x" * 5_000_000, "it is larger than 4.0 MiB"),
        (f"{'a' * 9000} = 1", "is an unknown key"),
        (f"[monitor]\nquiet_hours = '{DIGITS}:00-07:00'", "are not understood"),
        (f"[monitor]\nwebhook_env = '{DIGITS}'", "is not the name of a variable"),
        (f"[monitor]\nwebhook_token_env = '{DIGITS}'", "is not the name of a variable"),
        (f"[[serve]]\nmodel = 'x'\n[serve.env]\n{DIGITS} = 'x'", "is not the name of a variable"),
        (
            f"[[serve]]\nmodel = 'x'\n[serve.options]\nspeculation = 'mtp:{DIGITS}'",
            "is not understood",
        ),
        (
            f"[[upstream]]\nurl = 'http://a:1'\nslots = 1\nname = '-{DIGITS}'",
            "is not a valid upstream name",
        ),
        (f"[[upstream]]\nurl = 'http://a:1/{DIGITS}'\nslots = 1", "has the path"),
        (f"[cluster]\naddress = '{DIGITS}'", "is not the address of a Ray cluster"),
        (f"[cluster]\naddress = 'auto'\nhive = '{DIGITS}'", "is not a valid deployment name"),
        (f"[gateway]\ncors_origins = ['{DIGITS}']", "is not the origin of a web page"),
    ],
)
def test_a_settings_file_with_an_absurd_value_is_one_line_that_names_it(tmp_path, text, said):
    with pytest.raises(UserError) as caught:
        settings_of(tmp_path, text)
    message = caught.value.message
    assert "skep.toml" in message
    assert said in message
    assert len(message) < 400
    assert "\n" not in message


WHOLE = (
    'title = "M"\nengine = "vllm"\nmodel = "m"\ncheckpoint = "o/m"\nhardware = '
    '"rtx-3090"\nsource = "me"\n'
)
EMBEDDED = (
    WHOLE.replace("vllm", "embedded")
    .replace("rtx-3090", "cpu")
    .replace('"o/m"', '"smollm2-135m"')
    .replace('"m"', '"smollm2-135m"')
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (f"slots = {DIGITS}", "line 7: `slots` = 9999"),
        ("slots = 1e999", "`slots` = inf"),
        ("slots = -4", "`slots` = -4"),
        ("slots = 4\n[options]\nmemory_share = nan", "`options.memory_share`"),
        ("slots = 4\n[[published]]\ntok_s = 1e999", "`published.0.tok_s`"),
        (f"slots = 4\nx = {'{a=' * 3000}1{'}' * 3000}", "nested too deeply"),
        ("slots = 4\n#" + "x" * 5_000_000, "larger than 4.0 MiB"),
        ('slots = 4\nextra = ["--seed\\u0000"]', "`extra.0` contains the character U+0000"),
        (f"slots = 4\n{'a.' * 1_500}a = 1", "`a` is an unknown key"),
        (f"slots = 4\n{'a.' * 1_500}a = '\u202e'", "contains the character U+202E"),
        (f"slots = 4\n[options]\nspeculation = 'mtp:{DIGITS}'", "is not understood"),
    ],
)
def test_a_preset_with_an_absurd_value_is_one_line_that_names_it(tmp_path, lines, said):
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE + lines)
    with pytest.raises(UserError) as caught:
        read_preset(path)
    assert "mine.toml" in caught.value.message
    assert said in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("key", ["engine", "model", "checkpoint", "hardware"])
def test_a_long_name_in_a_preset_is_shortened_where_it_is_refused(tmp_path, key):
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(rf'{key} = ".*"', f'{key} = "o/{DIGITS}"', WHOLE) + "slots = 4")
    with pytest.raises(UserError) as caught:
        read_preset(path)
    assert len(caught.value.message) + len(caught.value.hint) < 600


DRIVER = (
    '[[need]]\nid = "driver"\nkind = "driver"\nwhy = "its CUDA"\nwhat = "driver {} or newer"\n'
)


@pytest.mark.parametrize(
    ("required", "driver", "is_met"),
    [
        ("575", "580.65.06", True),
        ("575", "570.1", False),
        (DIGITS, "580.65.06", False),
        (f"575.{DIGITS}", "575.1", False),
        ("575", DIGITS, False),
        (DIGITS, DIGITS, False),
    ],
)
def test_a_driver_of_any_number_is_compared_or_not_known(tmp_path, required, driver, is_met):
    path = tmp_path / "mine.toml"
    path.write_text(f"{WHOLE}slots = 4\n{DRIVER.format(required)}")
    missing = missing_needs(read_preset(path), RunEnvironment(driver_version=driver))
    assert missing == ([] if is_met else list(read_preset(path).needs))


def say_driver(folder, driver, name="X"):
    """Write an nvidia-smi that names two cards, the first one so."""
    head = "index, name, memory.total [MiB], driver_version"
    (folder / "cards.csv").write_text(
        f"{head}\n0, {name}, 24576 MiB, {driver}\n1, X, 24576 MiB, {driver}\n"
    )
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in --query-gpu=*) cat "{folder}/cards.csv" ;; *) exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    return str(program)


def test_a_preset_whose_driver_is_an_absurd_number_can_be_tried(tmp_path):
    folder = tmp_path / "config" / "skep" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(f"{EMBEDDED}slots = 4\n{DRIVER.format(DIGITS)}")
    say_driver(tmp_path, "580.65.06")
    env = environment(tmp_path)
    with running_skep(env, tmp_path) as skep:
        done = skep("up", "mine", "--dry-run", PATH=f"{tmp_path}:{env['PATH']}", check=0)
    assert "unexpected" not in done.stderr


def test_shell_characters_in_a_preset_are_words_of_the_program_and_no_more(tmp_path):
    """Flags are handed to the engine as they are, never to a shell."""
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE + 'slots = 4\nextra = ["--seed", "$(touch x); `id` && rm -rf ~"]')
    assert read_preset(path).extra == ("--seed", "$(touch x); `id` && rm -rf ~")


@pytest.mark.parametrize("name", ["../../mine", "Mine", ".mine", "a" * 81, "a b"])
def test_a_preset_whose_name_is_a_path_is_none(tmp_path, name):
    (tmp_path / "mine.toml").write_text(WHOLE + "slots = 4")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_preset(name, tmp_path / "a" / "b") is None


@pytest.mark.parametrize(
    "value", ["1e999", MANY, DIGITS, "nan", "inf", "-5", "٣" * 30, "[N/A]", ""]
)
def test_nvidia_smi_may_say_any_number(value):
    """A driver that is ill says odd things; a fact is not known then, and nothing breaks."""
    (gpu,) = parse_gpus(f"{COLUMNS}0, X, {value} MiB, {value}, {value}, {value} W\n")
    assert (gpu.memory_bytes, gpu.pcie_generation_max, gpu.power_limit_w) == (None, None, None)
    assert parse_gpus(f"{COLUMNS}{value}, X, 24576 MiB, 4, 16, 350 W\n") == ()
    assert parse_links(f"\tGPU0\tGPU{value}\nGPU0\tX\tNV4\nGPU{value}\tNV4\tX\n") == ()


@pytest.mark.parametrize("cell", ["x" * 5000, "x" * 131_073, DIGITS, '"' * 5001], ids=len)
def test_nvidia_smi_may_say_a_field_of_any_length(tmp_path, cell):
    """It is not known then, and the other fields and cards are read."""
    report = read_nvidia(say_driver(tmp_path, cell, name=cell))
    assert [gpu.name for gpu in report.gpus] == ["NVIDIA GPU", "X"]
    assert [gpu.memory_bytes for gpu in report.gpus] == [24576 * MIB] * 2
    assert report.driver_version is None
    assert report.error is None


def test_what_nvidia_smi_complains_of_is_told_in_a_line_that_can_be_read(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{'x' * 100_000}'\nexit 9\n")
    program.chmod(0o755)
    assert len(read_nvidia(str(program)).error) < 400
    assert parse_cuda_version(f"CUDA Version: {DIGITS}.{DIGITS}") is None


def test_the_kernel_s_files_may_hold_any_number(tmp_path):
    assert parse_counters(f"MemTotal: {DIGITS} kB\noom_kill {DIGITS}\nMemFree: 1 kB") == {
        "MemFree": 1024
    }
    assert parse_cpu_max(f"{DIGITS} 100000") is None
    (tmp_path / "loadavg").write_text("1e999 1 1 5/100 7")
    assert count_busy_cores(4, total=4, proc=tmp_path) == 0


@pytest.mark.parametrize(
    "text", [f"{DIGITS}x rtx-3090", f"rtx-3090 x {DIGITS}", f"{MANY}x {MANY}"]
)
def test_a_rig_of_any_number_of_cards_is_one_line(text):
    with pytest.raises(UserError):
        parse_rig(text)
    assert [count for _, count, _ in rig_parts(text)] == [1]


@pytest.mark.parametrize("pairs", [f"0-{DIGITS}", f"{DIGITS}-1", "-1-0", "1e9-2"])
def test_a_link_between_any_two_cards_is_one_line(pairs):
    with pytest.raises(UserError):
        parse_rig(f"2x rtx-3090: nvlink({pairs})")


@pytest.mark.parametrize(
    "parse",
    [
        parse_bytes,
        parse_seconds,
        lambda text: parse_percent(text, key="k"),
        lambda text: parse_share(text, "--share"),
    ],
)
@pytest.mark.parametrize(
    "text", [MANY, DIGITS, "1e999", "nan", "-1", "", DIGITS + "GB", "1" + " " * 9000 + "!"]
)
def test_a_size_a_duration_or_a_share_of_any_number_is_one_line(parse, text):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert len(caught.value.message) < 200


def test_a_key_file_with_an_absurd_number_does_not_show_it(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[[key]]\nname = "a"\nsha256 = {DIGITS}\n')
    with pytest.raises(
        UserError, match="line 3: `sha256`: the number has too many digits"
    ) as caught:
        read_keys(path)
    assert "999" not in caught.value.message
