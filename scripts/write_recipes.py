"""Writes docs/recipes.md: for each of some home rigs the line that serves a model on it, as the
planner says today.
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_check

from skep.deploy.commands import caveats, start_line
from skep.deploy.plan_request import EVIDENCE_START, PlanFlags, answer_plan
from skep.report.plan_sessions import speed_line, wait_line, warm_line

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
RIGS = (
    ("One RTX 3060 (12 GB), one agent", "rtx-3060", "qwen3.6-35b-a3b", 1),
    ("One RTX 3090, one agent", "rtx-3090", "qwen3.6-35b-a3b", 1),
    ("One RTX 3090, four agents", "rtx-3090", "gpt-oss-20b", 4),
    ("Two RTX 3090s, four agents, a dense model", "2x rtx-3090", "qwen3.6-27b", 4),
    ("Two RTX 3090s, eight agents", "2x rtx-3090", "qwen3.6-35b-a3b", 8),
    ("Four RTX 3090s, eight agents", "4x rtx-3090", "llama-3.3-70b", 8),
    ("One RTX 4090, one agent", "rtx-4090", "gpt-oss-20b", 1),
    ("One RTX 4090, eight agents", "rtx-4090", "qwen3-coder-30b-a3b", 8),
    ("One RTX 5090, eight agents", "rtx-5090", "qwen3.6-27b", 8),
    ("Two RTX 5090s, twenty agents", "2x rtx-5090", "qwen3.6-35b-a3b", 20),
    ("A Strix Halo with 128 GB, one agent", "strix-halo", "gpt-oss-120b", 1),
    ("One RX 7900 XTX, two agents", "7900xtx", "qwen3-14b", 2),
    ("One RTX PRO 6000 (96 GB), sixteen agents", "rtx-pro-6000", "gpt-oss-120b", 16),
)
HEAD = """# Recipes for home rigs

Find your rig and paste its line. It serves what `skep plan MODEL --gpu RIG -c N` recommends today; on the rig itself
`skep up MODEL -c N` chooses the same.

Figures are predictions for sessions of a coding agent ([sessions.md](sessions.md)): a turn is a request, a session has 43 of them,
sends 20,000 tokens of system prompt and tools, and pauses while its tools run. `skep plan --load task` has those of single
requests. `skep plan` also prints published measurements, where there are some;
[accuracy.md](accuracy.md) compares both. Lines leave the vision tower out; add `--vision` if your agents send pictures.
[which-model.md](which-model.md) explains how to choose. `make docs` writes this page.
"""


def page() -> str:
    parts = [HEAD]
    for title, rig, model, agents in RIGS:
        found = answer_plan(
            PlanFlags(model, (rig,), agents=agents), Path("/nonexistent"), files=False
        )
        _, best = found.ranked[0]
        assert best.outlook is not None
        speed = f"{speed_line(best.outlook, agents)}. {capitalized(wait_line(best, best.outlook))}"
        warm = warm_line(best.outlook)
        parts += [f"## {title}\n", f"    {start_line(found, best)}\n", f"{speed}; {warm}.\n"]
        parts += [
            f"Note: {line}.\n" for line in caveats(found, best)[:2] if is_for_this_page(line)
        ][:1]
    return "\n".join(parts)


def capitalized(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}"


def is_for_this_page(caveat: str) -> bool:
    """Return whether the page's head does not say it for all rigs."""
    return "--vision" not in caveat and not caveat.startswith(EVIDENCE_START)


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: page}))
