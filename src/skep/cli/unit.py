"""The systemd user unit that `skep service` prints."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

# KillMode=mixed: skep gets TERM and drains; what is left after the time-out is killed.
_UNIT = """\
# ~/.config/systemd/user/skep.service
# systemctl --user daemon-reload && systemctl --user enable --now skep
# loginctl enable-linger   # to serve without being logged in
[Unit]
Description=skep: one endpoint for a swarm of agents
After=network.target

[Service]
Type=exec
ExecStart={command} up
ExecReload={command} reload
WorkingDirectory={folder}
Restart=on-failure
RestartSec=5
KillMode=mixed
TimeoutStopSec=120
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


def systemd_unit() -> str:
    """For the skep that runs now; started in this folder, so that a skep.toml here is found."""
    beside = Path(sys.executable).with_name("skep")
    command = str(beside) if beside.exists() else shutil.which("skep") or f"{sys.executable} -m skep"
    return _UNIT.format(command=_quoted(command), folder=str(Path.cwd()).replace("%", "%%"))


def _quoted(command: str) -> str:
    safe = command.replace("%", "%%")
    return f'"{safe}"' if " " in safe and not safe.endswith(" -m skep") else safe
