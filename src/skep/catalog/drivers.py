"""Which NVIDIA driver an engine needs, and which older release runs with an older driver."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec


class EngineReleases(msgspec.Struct, frozen=True):
    """The releases of an engine at which its CUDA changed."""

    cuda_13_since: str
    last_for_cuda_12: str


class DriverTable(msgspec.Struct, frozen=True):
    """The content of `drivers.toml`."""

    oldest: Mapping[str, int]  # by major version of CUDA
    recommended: Mapping[str, int]  # by a part of the card's name
    releases: Mapping[str, EngineReleases]  # by engine


class DriverNeed(msgspec.Struct, frozen=True):
    """The driver that a release of an engine needs, because of the CUDA that it was built with."""

    cuda: int
    driver: int


@cache
def driver_table() -> DriverTable:
    text = files("skep.catalog").joinpath("drivers.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), DriverTable)


def need_of_cuda(cuda: int) -> DriverNeed:
    return DriverNeed(cuda, driver_table().oldest[str(cuda)])


def need_of(engine: str, version: str | None) -> DriverNeed | None:
    """Return what a release needs, the newest where none is named; None: it is not known."""
    releases = driver_table().releases.get(engine)
    if releases is None:
        return None
    release = version or ""
    numbers = _numbers(release)
    first = _numbers(releases.cuda_13_since) or ()
    if numbers is not None and numbers < first:
        return need_of_cuda(12)
    return need_of_cuda(12 if "+cu12" in release else 13)


def older_release(engine: str, driver: str) -> str | None:
    """Return the newest release that this driver runs, where the newest of all needs a newer
    driver.
    """
    releases = driver_table().releases.get(engine)
    major = driver_number(driver)
    if releases is None or major is None or major < need_of_cuda(12).driver:
        return None
    return releases.last_for_cuda_12


def recommended_driver(card: str) -> int | None:
    """Return the driver that is recommended for a card of this name; None: none in particular."""
    for name, driver in driver_table().recommended.items():
        if name in card:
            return driver
    return None


def driver_number(driver: str | None) -> int | None:
    """Return the first number of a driver's version; None where it has none."""
    matched = re.match(r"\d{1,6}", driver or "")
    return int(matched[0]) if matched else None


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return the three numbers of a release; None where there are none, as of a nightly build."""
    release = version.partition("+")[0]
    numbers = [int(number) for number in re.findall(r"\d{1,9}", release)]
    if not numbers:
        return None
    return tuple([*numbers, 0, 0][:3])
