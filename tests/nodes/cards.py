"""Nodes with cards that are not there: each has its own `nvidia-smi` and a program that speaks as
SGLang does.
"""

import os
from pathlib import Path

from skep.testing.speakers import write_program

COLUMNS = (
    "index, name, memory.total [MiB], compute_cap, pcie.link.gen.current, "
    "pcie.link.gen.max, pcie.link.width.current, "
    "pcie.link.width.max, power.limit [W], driver_version"
)
SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) cat "{folder}/cards.csv" ;;
--query-gpu=index,memory*) cat "{folder}/memory.csv" ;;
*) echo "CUDA Version: 12.8" ;;
esac
"""


class Cards:
    """Of one node, in a folder of its own. `used_mib`: what nvidia-smi says of each."""

    def __init__(self, folder, name, mib, count, capability="8.6"):
        self.folder = Path(folder)
        self._mib = mib
        self._count = count
        self.folder.mkdir(parents=True)
        rows = [
            f"{n}, {name}, {mib} MiB, {capability}, 4, 4, 16, 16, 300.00 W, 570.1"
            for n in range(count)
        ]
        (self.folder / "cards.csv").write_text("\n".join([COLUMNS, *rows, ""]))
        self.hold([0] * count)
        program = self.folder / "nvidia-smi"
        program.write_text(SMI.format(folder=self.folder))
        program.chmod(0o755)
        write_program(str(self.folder / "python-with-sglang"), "sglang")

    def hold(self, used_mib):
        """Somebody else does, card by card."""
        rows = [f"{number}, {self._mib}, {used}" for number, used in enumerate(used_mib)]
        (self.folder / "memory.csv").write_text(
            "\n".join(["index, memory.total [MiB], memory.used [MiB]", *rows, ""])
        )

    @property
    def env(self):
        return {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "SKEP_SGLANG_PYTHON": str(self.folder / "python-with-sglang"),
        }


def variable_of(pid, name):
    """What a process was started with; None: it was not set."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    cards = [
        word.partition(b"=")[2].decode() for word in words if word.startswith(name.encode() + b"=")
    ]
    return cards[-1] if cards else None
