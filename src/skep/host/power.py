"""What the GPUs draw while something runs: energy, power, throttling, heat and clocks, from
NVIDIA's NVML.

Without the library, a card or a permission of the driver there is no meter, and no zero. Knows
nothing of requests and tokens. Power is sampled and summed: on an H200, 0.1 to 1.2 % off the
card's own energy counter."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skep.host.facts import named_cards, read_gpu_memory, visible_gpus

SAMPLE_EVERY_S = 0.1
CLEAR_WITHIN_BYTES = 64 << 20  # a driver's own use moves by a few MiB
LOOK_EVERY_S = 0.5
LEAST_HELD = 0.05  # of a card's memory: a desktop and a driver take less
SAMPLES = "NVML power samples"

# Bits of NVML's clock event reasons that mean "slower than it could be". Being idle (0x1), clocks
# that somebody set (0x2, 0x100) and keeping step with another card (0x10) do not.
_HW_SLOWDOWN = 0x8
_THROTTLING = {
    0x4: "power cap",
    _HW_SLOWDOWN: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
_HW_CAUSES = 0x40 | 0x80  # come together with the hardware slowdown and say why


class NvmlGpu(msgspec.Struct, frozen=True):
    index: int  # NVML's, by PCI bus: that of nvidia-smi
    uuid: str
    name: str


class GpuSample(msgspec.Struct, frozen=True):
    """One reading of one card. None: the card does not report it."""

    power_w: float | None = None
    reasons: int | None = None  # bits of NVML's clock event reasons
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None


class DriverNvml:
    """NVML of the driver; `module` is pynvml, initialised.

    No method but `cards` raises; a value that is not reported is None.
    """

    def __init__(self, module: Any) -> None:
        self._nvml = module
        self._handles: dict[int, Any] = {}
        # Not asked again: that would be 10 times a second, for hours.
        self._unsupported: set[tuple[int, str]] = set()

    def cards(self) -> Sequence[NvmlGpu]:
        cards = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # A card may have fallen off the bus, or this user may not open it.
            with suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                name = self._nvml.nvmlDeviceGetName(handle)
                cards.append(NvmlGpu(index, _text(uuid), _text(name)))
                self._handles[index] = handle
        return cards

    def sample(self, index: int) -> GpuSample:
        milliwatts = self._instant_mw(index)
        if milliwatts is None:
            milliwatts = self._ask(index, "nvmlDeviceGetPowerUsage")
        reasons = self._ask(index, "nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            # Its name until driver 535.
            reasons = self._ask(index, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return GpuSample(
            power_w=None if milliwatts is None else milliwatts / 1000,
            reasons=reasons,
            temperature_c=self._ask(
                index, "nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU
            ),
            sm_clock_mhz=self._ask(index, "nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
        )

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _instant_mw(self, index: int) -> int | None:
        """Return the power of the moment: since Ampere, `nvmlDeviceGetPowerUsage` is the mean of
        the last second.
        """
        values = self._ask(
            index, "nvmlDeviceGetFieldValues", [self._nvml.NVML_FI_DEV_POWER_INSTANT]
        )
        if not values:
            return None
        if values[0].nvmlReturn != self._nvml.NVML_SUCCESS or not values[0].value.uiVal:
            self._unsupported.add((index, "nvmlDeviceGetFieldValues"))
            return None
        return int(values[0].value.uiVal)

    def _ask(self, index: int, function: str, *arguments: Any) -> Any:
        """Return NVML's answer; None where the card, the driver or its age gives none."""
        if (index, function) in self._unsupported or index not in self._handles:
            return None
        nvml = self._nvml
        try:
            return getattr(nvml, function)(self._handles[index], *arguments)
        except (
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_NoPermission,
        ):
            self._unsupported.add((index, function))
        except nvml.NVMLError:  # lost, or busy for a moment
            pass
        return None


@dataclass
class _GpuEnergy:
    """What the samples of one card in a span add up to."""

    card: NvmlGpu
    joules: float = 0.0
    seconds: float = 0.0
    max_w: float = 0.0
    temperature_max_c: float | None = None
    sm_clock_min_mhz: int | None = None
    throttled: set[str] = field(default_factory=set)
    # When, and how many watts; None: the card reported nothing.
    last: tuple[float, float] | None = None

    def add(self, at_s: float, sample: GpuSample) -> None:
        self._add_power(at_s, sample.power_w)
        if sample.temperature_c is not None:
            self.temperature_max_c = max(
                sample.temperature_c, self.temperature_max_c or sample.temperature_c
            )
        if sample.sm_clock_mhz is not None:
            self.sm_clock_min_mhz = min(
                sample.sm_clock_mhz, self.sm_clock_min_mhz or sample.sm_clock_mhz
            )
        self.throttled.update(throttle_reasons(sample.reasons or 0))

    def _add_power(self, at_s: float, power_w: float | None) -> None:
        """Add the energy since the last sample, if both have a power."""
        if power_w is None:
            self.last = None
            return
        if self.last is not None:
            last_at_s, last_w = self.last
            self.joules += (at_s - last_at_s) * (power_w + last_w) / 2
            self.seconds += at_s - last_at_s
        self.max_w = max(self.max_w, power_w)
        self.last = (at_s, power_w)


class PowerMeter:
    """`begin()` ... `end()`, as often as wanted, one span at a time; `close()` at last.

    Cards that tell no power at the beginning of a span are left out of it; the result lists those
    that are in. The sampling thread is alive only inside a span."""

    def __init__(
        self,
        nvml: DriverNvml,
        cards: Sequence[NvmlGpu],
        *,
        clock: Callable[[], float] = time.monotonic,
        sample_every_s: float = SAMPLE_EVERY_S,
    ) -> None:
        self._nvml = nvml
        self.cards = tuple(cards)
        self._clock = clock
        self._sample_every_s = sample_every_s
        self._energies: list[_GpuEnergy] = []  # of the cards of the span
        self._max_w = 0.0  # of all cards together, at one moment
        self._began_s: float | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "idle" if self._began_s is None else "measuring"
        return f"<PowerMeter of {len(self.cards)} GPUs, {state}>"

    def begin(self) -> None:
        """Begin a span; one that was never ended is dropped."""
        self._stop_sampling()
        self._began_s = self._clock()
        self._max_w = 0.0
        self._energies = [_GpuEnergy(card) for card in self.cards]
        self._sample_all()
        self._energies = [energy for energy in self._energies if energy.last is not None]
        self._ending = threading.Event()

        def sample_often(ending: threading.Event) -> None:
            while not ending.wait(self._sample_every_s):
                self._sample_all()

        self._thread = threading.Thread(
            target=sample_often, args=(self._ending,), name="power", daemon=True
        )
        self._thread.start()

    def end(self) -> dict[str, Any] | None:
        """Return the energy of the span; None without `begin()`, or where a card stopped
        reporting.
        """
        if self._began_s is None:
            return None
        self._stop_sampling()
        self._sample_all()
        seconds = self._clock() - self._began_s
        self._began_s = None
        all_reported = all(energy.last is not None and energy.seconds for energy in self._energies)
        if not self._energies or not all_reported:
            return None
        return _span_json(self._energies, seconds, self._max_w)

    def close(self) -> None:
        self._stop_sampling()
        self._began_s = None
        self._nvml.close()

    def _stop_sampling(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _sample_all(self) -> None:
        together_w = 0.0
        for energy in self._energies:
            sample = self._nvml.sample(energy.card.index)
            energy.add(self._clock(), sample)
            together_w += sample.power_w or 0.0
        self._max_w = max(self._max_w, together_w)


def _span_json(energies: Sequence[_GpuEnergy], seconds: float, max_w: float) -> dict[str, Any]:
    """Return the figures of a span. Where samples are missing, a card drew its mean power."""
    joules_by_card = [energy.joules * seconds / energy.seconds for energy in energies]
    joules = sum(joules_by_card)
    return {
        "joules": joules,
        "seconds": seconds,
        "mean_w": joules / seconds,
        "max_w": max_w,
        "throttled": sorted(set[str]().union(*(energy.throttled for energy in energies))),
        "source": SAMPLES,
        "gpus": [
            {
                "index": energy.card.index,
                "name": energy.card.name,
                "joules": gpu_joules,
                "mean_w": gpu_joules / seconds,
                "temperature_max_c": energy.temperature_max_c,
                "sm_clock_min_mhz": energy.sm_clock_min_mhz,
            }
            for energy, gpu_joules in zip(energies, joules_by_card, strict=True)
        ],
    }


def throttle_reasons(bits: int) -> list[str]:
    """Return the names of the reasons.

    The hardware slowdown is left out where its cause is known.
    """
    if bits & _HW_CAUSES:
        bits &= ~_HW_SLOWDOWN
    return [name for bit, name in _THROTTLING.items() if bits & bit]


def open_meter(visible: str | None = None) -> PowerMeter | None:
    """Return a meter of the visible GPUs; None where there is nothing to measure.

    `visible` overrides CUDA_VISIBLE_DEVICES. A number in it counts in the order of the PCI bus,
    which is CUDA's own where all cards are alike or CUDA_DEVICE_ORDER says so. A slice of a card
    (MIG) is not known here: its energy cannot be told from that of the other slices."""
    try:
        module = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception:  # no library, no driver, no device, no permission: nothing is measured
        return None
    nvml = DriverNvml(module)
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    with suppress(Exception):  # as above: the driver may refuse at any step
        cards = nvml.cards()
        if visible is not None:
            names = {name: card for card in cards for name in (str(card.index), card.uuid)}
            cards = named_cards(visible, names)
        if cards:
            return PowerMeter(nvml, cards)
    nvml.close()
    return None


GpuMemory = dict[int, int]  # bytes by the number of a card


def gpu_memory_used() -> GpuMemory | None:
    """Return the bytes used of each visible GPU that reports them; None: none does."""
    cards = visible_gpus(read_gpu_memory(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {card.index: card.used_bytes for card in cards if card.used_bytes is not None} or None


def gpu_memory_in_use() -> dict[str, Any] | None:
    """Return used and total bytes of the visible GPUs that hold something, all programs counted;
    None: none holds anything, or the driver does not say.
    """
    cards = visible_gpus(read_gpu_memory(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    sizes = [
        (card.used_bytes, card.total_bytes)
        for card in cards
        if card.used_bytes and card.total_bytes
    ]
    in_use = [(used, total) for used, total in sizes if used / total > LEAST_HELD]
    if not in_use:
        return None
    return {
        "used_bytes": sum(used for used, _ in in_use),
        "total_bytes": sum(total for _, total in in_use),
        "gpus": len(in_use),
        "source": "nvidia-smi",
    }


def wait_until_clear(
    used: Callable[[], GpuMemory | None],
    baseline: GpuMemory,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> GpuMemory | None:
    """Wait until memory use is back at the baseline.

    Return the excess at the timeout; None: not known.
    """
    until_s = clock() + timeout_s
    while (now := used()) is not None:
        excess = {
            index: size - baseline[index] for index, size in now.items() if index in baseline
        }
        remaining = {index: size for index, size in excess.items() if size > CLEAR_WITHIN_BYTES}
        if not remaining or clock() >= until_s:
            return remaining
        sleep(LOOK_EVERY_S)
    return None


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
