"""How many watts a card may draw: read, set, and set back. Setting wants root, and the driver of an NVIDIA card.

Knows nothing of who wants it. What a card does not tell is left out, and nobody gets a zero.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from skep.errors import UserError

_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Cap:
    """Of one card, in watts."""

    index: int  # NVML's: that of nvidia-smi
    lowest: float
    usual: float
    now: float
    highest: float


class Limiter(Protocol):
    """What is asked of NVML. A card that does not tell is not among the caps; `set_w` raises UserError."""

    def caps(self) -> Sequence[Cap]: ...
    def set_w(self, index: int, watts: float) -> None: ...
    def close(self) -> None: ...


class DriverLimiter:
    """NVML of the driver that is installed. `module` is pynvml, already initialised."""

    def __init__(self, module: Any) -> None:
        self._nvml = module

    def caps(self) -> Sequence[Cap]:
        found: list[Cap] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with suppress(self._nvml.NVMLError):  # a laptop's card, or one that fell off the bus
                found.append(self._cap(index))
        return found

    def set_w(self, index: int, watts: float) -> None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * _MILLI))
        except self._nvml.NVMLError as error:
            hint = "setting it wants root; leave `power_cap` out"
            raise UserError(
                f"the power limit of GPU {index} cannot be set to {watts:g} W: {error}", hint=hint
            ) from None

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _cap(self, index: int) -> Cap:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        lowest, highest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        usual = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
        now = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        return Cap(index, lowest / _MILLI, usual / _MILLI, now / _MILLI, highest / _MILLI)


def read_caps() -> tuple[Cap, ...]:
    """Of every card that tells; empty where there is none."""
    limiter = _open()
    if limiter is None:
        return ()
    try:
        return tuple(limiter.caps())
    except Exception:  # the driver may refuse at any step: all the same to who asks
        return ()
    finally:
        limiter.close()


def can_set() -> bool:
    return os.geteuid() == 0 and bool(read_caps())


@contextmanager
def power_caps(share: float, indices: Sequence[int] = (), *, limiter: Limiter | None = None) -> Iterator[None]:
    """Each of these cards (none named: all) draws at most this share of what it may now; then as it was before."""
    opened = limiter or _open()
    if opened is None:
        raise UserError(f"no card here takes a power limit of {share:.0%}", hint="leave `power_cap` out")
    try:
        before = {cap.index: cap for cap in opened.caps() if not indices or cap.index in indices}
        wanted = _wanted(share, before, indices)
        with _set_back(opened, {index: cap.now for index, cap in before.items()}):
            for index, watts in wanted.items():
                opened.set_w(index, watts)
            yield
    finally:
        opened.close()


def restore_caps(before: Mapping[int, float], *, limiter: Limiter | None = None) -> None:
    """As they were, as far as they can be: for who cleans up after another one."""
    opened = limiter or (_open() if before else None)
    if opened is None:
        return
    with suppress(Exception), _set_back(opened, before):  # it is the last thing that could be done
        pass
    opened.close()


def _wanted(share: float, caps: Mapping[int, Cap], indices: Sequence[int]) -> dict[int, float]:
    missing = next((index for index in indices if index not in caps), None)
    if missing is not None or not caps:
        which = "no card tells" if missing is None else f"GPU {missing} does not tell"
        raise UserError(f"{which} its power limit", hint="leave `power_cap` out")
    for cap in caps.values():
        if not cap.lowest <= share * cap.now <= cap.highest:
            raise UserError(f"{share:.0%} of {cap.now:g} W is beyond what GPU {cap.index} takes",
                            hint=f"from {cap.lowest:g} to {cap.highest:g} W")  # fmt: skip
    return {index: share * cap.now for index, cap in caps.items()}


@contextmanager
def _set_back(limiter: Limiter, before: Mapping[int, float]) -> Iterator[None]:
    """Every one of them, whatever happens with the others."""
    try:
        yield
    finally:
        for index, watts in before.items():
            with suppress(UserError):
                limiter.set_w(index, watts)


def _open() -> Limiter | None:
    try:
        module = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception:  # no library, no driver, no device, no leave
        return None
    return DriverLimiter(module)
