"""Engines in environments of their own, by pip from a folder of wheels."""

import zipfile
from types import SimpleNamespace

import pytest

from skep.engines.discovery import engine_folder, find_program, version_of
from skep.engines.install import engine_status, install_engine, remove_engine
from skep.errors import EngineError, UserError

DRIVER = "580.65.06"


def offer_wheels(folder, environment):
    """A vLLM of one line, in two versions, and nothing else to be had."""
    wheels = folder / "wheels"
    wheels.mkdir()
    for version in ("0.24.0", "0.25.0"):
        info = f"vllm-{version}.dist-info"
        with zipfile.ZipFile(wheels / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("vllm/__init__.py", "def main(): print('usage: vllm')\n")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nvllm = vllm:main\n")
            wheel.writestr(f"{info}/RECORD", "")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PATH": "/usr/bin:/bin",
    }.items():
        environment.setenv(name, value)
    environment.setenv("XDG_DATA_HOME", str(folder / "data"))


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    offer_wheels(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """What was seen after each step: an installation, one that fails, another version, removal."""
    with pytest.MonkeyPatch.context() as environment:
        offer_wheels(tmp_path_factory.mktemp("engines"), environment)
        record = SimpleNamespace(lines=[], folder=engine_folder("vllm"))
        program = install_engine("vllm", driver=DRIVER, say=record.lines.append)
        record.installed_version = version_of(program)
        record.located_program = find_program("vllm")
        record.status = engine_status("vllm")

        with pytest.raises(EngineError) as failure:
            install_engine("vllm", version="9.9.9", driver=DRIVER, say=lambda _: None)
        record.failure = failure
        record.version_after_failure = version_of(find_program("vllm"))

        install_engine("vllm", version="0.25.0", driver=DRIVER, say=lambda _: None)
        record.replaced_version = version_of(find_program("vllm"))

        record.removed_folder = remove_engine("vllm")
        record.names_after_removal = [path.name for path in record.folder.parent.iterdir()]
        with pytest.raises(UserError) as absence:
            find_program("vllm")
        record.absence = absence
    return record


@pytest.mark.slow
def test_an_engine_is_installed_in_two_steps_that_are_told(steps):
    assert steps.installed_version == "vllm 0.24.0"
    assert [line for line in steps.lines if line.endswith("...")] == [
        "creating the environment ...",
        "installing vllm==0.24.0 with pip ...",
    ]


@pytest.mark.slow
def test_an_engine_that_was_installed_is_found_and_is_skeps_own(steps):
    assert steps.located_program.path == steps.folder / "bin" / "vllm"
    assert steps.status.own


@pytest.mark.slow
def test_an_installation_that_fails_says_why_and_brings_back_the_one_before(steps):
    words = r"installing vllm==9\.9\.9 with pip failed: ERROR: No matching distribution"
    assert steps.failure.match(words)
    assert steps.version_after_failure == "vllm 0.24.0"


@pytest.mark.slow
def test_an_engine_is_replaced_by_another_version(steps):
    assert steps.replaced_version == "vllm 0.25.0"


@pytest.mark.slow
def test_an_engine_that_was_removed_leaves_nothing_and_is_not_found(steps):
    assert steps.removed_folder == steps.folder
    assert steps.names_after_removal == []
    assert steps.absence.match("vllm is not installed")


def test_an_installer_may_say_what_is_no_text(tmp_path, monkeypatch):
    """A compiler that quotes Latin-1 must not stop the reader of its output."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    uv = tmp_path / "uv"
    uv.write_text(
        "#!/bin/sh\nprintf 'b\\351d\\n'; yes line | head -c 300000; echo 'error: gave up'; "
        "exit 1\n"
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineError, match="creating the environment failed: error: gave up"):
        install_engine("vllm", driver=DRIVER, say=lambda _: None)


def test_a_disk_without_room_is_told_before_anything_is_made(wheels, monkeypatch):
    monkeypatch.setattr(
        "skep.engines.install.shutil.disk_usage", lambda _: type("", (), {"free": 1 << 30})
    )
    with pytest.raises(UserError, match=r"no space for vllm .* needs 14 GiB, has 1.0 GiB"):
        install_engine("vllm", driver=DRIVER, say=print)
    assert not engine_folder("vllm").exists()
