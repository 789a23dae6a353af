"""Engines in environments of their own, by pip from a folder of wheels."""

import zipfile

import pytest

from skep.engines.discovery import engine_folder, find_program, version_of
from skep.engines.install import engine_status, install_engine, remove_engine
from skep.errors import EngineError, UserError


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A vLLM of one line, in two versions, and nothing else to be had."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("0.24.0", "0.25.0"):
        info = f"vllm-{version}.dist-info"
        with zipfile.ZipFile(folder / f"vllm-{version}-py3-none-any.whl", "w") as wheel:
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
        "PIP_FIND_LINKS": str(folder),
        "PATH": "/usr/bin:/bin",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.slow
def test_an_engine_is_installed_found_replaced_and_removed(wheels, tmp_path):
    lines = []
    program = install_engine("vllm", driver="580.65.06", say=lines.append)
    assert version_of(program) == "vllm 0.24.0"
    assert [line for line in lines if line.endswith("...")] == [
        "creating the environment ...",
        "installing vllm==0.24.0 with pip ...",
    ]
    assert find_program("vllm").path == engine_folder("vllm") / "bin" / "vllm"
    assert engine_status("vllm").own
    with pytest.raises(
        EngineError,
        match=r"installing vllm==9\.9\.9 with pip failed: ERROR: No matching distribution",
    ):
        install_engine("vllm", version="9.9.9", driver="580.65.06", say=lines.append)
    assert version_of(find_program("vllm")) == "vllm 0.24.0"  # the one before is back
    install_engine("vllm", version="0.25.0", driver="580.65.06", say=lines.append)
    assert version_of(find_program("vllm")) == "vllm 0.25.0"
    assert remove_engine("vllm") == engine_folder("vllm")
    assert [path.name for path in engine_folder("vllm").parent.iterdir()] == []
    with pytest.raises(UserError, match="vllm is not installed"):
        find_program("vllm")


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
        install_engine("vllm", driver="580.65.06", say=lambda _: None)


def test_a_disk_without_room_is_told_before_anything_is_made(wheels, monkeypatch):
    monkeypatch.setattr(
        "skep.engines.install.shutil.disk_usage", lambda _: type("", (), {"free": 1 << 30})
    )
    with pytest.raises(UserError, match=r"no space for vllm .* needs 14 GiB, has 1.0 GiB"):
        install_engine("vllm", driver="580.65.06", say=print)
    assert not engine_folder("vllm").exists()
