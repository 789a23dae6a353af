"""The short form of benchmarks/soak_month.py: a day of watching with kills, sleeps, clock jumps
and a full disk.
"""

import secrets
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from soak_month import soak


def _check(report, fewest_lives):
    summary = {name: report[name] for name in ("seed", "ends", "log", "wrong")}
    assert not report["wrong"], summary
    assert report["lives"] >= fewest_lives, summary
    assert report["samples"]["stored"] > 100, summary


def test_a_day_with_kills_lose_and_double_nothing(tmp_path):
    _check(soak(0.6, secrets.randbelow(1_000_000), tmp_path, life_s=(0.02, 0.12)), 2)


@pytest.mark.slow
def test_two_weeks_with_kills_lose_and_double_nothing(tmp_path):
    _check(soak(14.0, secrets.randbelow(1_000_000), tmp_path, life_s=(0.02, 0.8)), 20)
