"""Texts as the tools print them, and a small executable that prints them where nvidia-smi is asked
for.
"""

from pathlib import Path

import pytest

CAPTURED = Path(__file__).parent / "captured"


@pytest.fixture
def captured():
    def read(name: str) -> str:
        return (CAPTURED / name).read_text(encoding="utf-8")

    return read


@pytest.fixture
def script(tmp_path):
    """Writes a shell script and returns its path."""

    def write(body: str) -> str:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def smi(script):
    """An nvidia-smi that prints the texts of one captured machine."""

    def of(machine: str) -> str:
        folder = CAPTURED / machine
        return script(
            f'case "$1" in\n--query-gpu=*) cat "{folder}/query.csv" ;;\n'
            f'topo) cat "{folder}/topo.txt" ;;\n*) cat "{folder}/header.txt" ;;\nesac'
        )

    return of
