"""Draws docs/images/tuning.svg: a tuning on a simulated rig, which the picture says of itself.

Takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from picture_file import panel, standalone

from skep.paths import user_paths
from skep.report import theme
from skep.report.tuning import ladder_chart
from skep.store.database import open_store
from skep.tuner import summary
from skep.tuner.store import TuningRecord, TuningStore
from skep.units import public_name

ROOT = Path(__file__).parent.parent
IMAGE = ROOT / "docs" / "images" / "tuning.svg"
CLIMB = (
    "tune", "qwen3.6-27b", "--gpu", "2x rtx-3090", "--simulate", "--goal", "effective_tok_s@4",
    "--input-tokens", "1024", "--output-tokens", "1024", "--budget", "12h", "--seed", "1",
    "--json",
)  # fmt: skip


def ladder_picture(found: TuningRecord) -> str:
    tuning = found.tuning
    spec = ladder_chart(found.tuning, found.stages)
    assert spec is not None
    said = summary.headline(tuning, found.stages)
    facts = (
        "SIMULATED",
        public_name(tuning.model),
        tuning.engine,
        tuning.rig,
        summary.shape_words(tuning),
    )
    drawn = panel(spec, said, " · ".join(facts), 480, spec["height"])
    drawn["title"] |= {"subtitleColor": theme.ROSE}
    return standalone(drawn, f"{' · '.join(facts)}: {said}")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folders = {
            f"XDG_{name}_HOME": f"{place}/{name}" for name in ("CONFIG", "DATA", "STATE", "CACHE")
        }
        env = {**os.environ, **folders}
        done = subprocess.run(
            [sys.executable, "-m", "skep", *CLIMB],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        with open_store(user_paths(env).store, read_only=True) as store:
            found = TuningStore(store).record("last")
            IMAGE.write_text(ladder_picture(found), encoding="utf-8")
    print(f"{IMAGE.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
