"""Power, energy and memory of GPUs, with a driver that tells what it is told to tell."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from skep.host.facts import named_cards
from skep.host.power import (
    SAMPLES,
    DriverNvml,
    GpuSample,
    NvmlGpu,
    PowerMeter,
    gpu_memory_in_use,
    open_meter,
    throttle_reasons,
    wait_until_clear,
)
from skep.units import GIB

A = NvmlGpu(0, "GPU-aaaa-1", "Card A")
B = NvmlGpu(1, "GPU-aabb-2", "Card B")


@dataclass
class Script:
    """A driver with two cards: samples, one after the other; the last one stays."""

    samples: dict[int, list[GpuSample]] = field(default_factory=dict)
    sampled: int = 0
    closed: bool = False
    enough: threading.Event = field(default_factory=threading.Event)
    enough_samples: int = 10**9

    def cards(self):
        return [A, B]

    def sample(self, index):
        self.sampled += 1
        if self.sampled >= self.enough_samples:
            self.enough.set()
        return self._next(self.samples.get(index, [GpuSample()]))

    def close(self):
        self.closed = True

    @staticmethod
    def _next(values):
        if len(values) > 1:
            return values.pop(0)
        return values[0]


def span(script, cards, seconds, looks=0):
    """One span of a meter whose clock moves `seconds` in all, and one second for each look in
    between.
    """
    now = [100.0]
    meter = PowerMeter(script, cards, clock=lambda: now[0], sample_every_s=3600)
    meter.begin()
    for _ in range(looks):
        now[0] += 1
        meter._sample_all()
    now[0] += seconds - looks
    return meter.end()


def watts(*values):
    return [GpuSample(power_w=value) for value in values]


def test_the_energy_of_a_span_is_the_sum_of_its_power_samples():
    result = span(Script({0: watts(100.0, 200.0, 300.0, 300.0)}), [A], 3.0, looks=2)
    expected = {
        "joules": 150 + 250 + 300,
        "seconds": 3.0,
        "mean_w": 700 / 3,
        "max_w": 300.0,
        "source": SAMPLES,
    }
    assert {key: result[key] for key in expected} == pytest.approx(expected)


def test_several_cards_add_up_and_are_listed():
    result = span(Script({0: watts(60.0, 40.0), 1: watts(20.0, 40.0)}), [A, B], 10.0)
    assert (result["joules"], result["max_w"]) == (800.0, 80.0)
    listed = [(gpu["index"], gpu["name"], gpu["joules"]) for gpu in result["gpus"]]
    assert listed == [(0, "Card A", 500.0), (1, "Card B", 300.0)]


def test_heat_clocks_and_throttling_are_kept_by_card():
    looks = [
        GpuSample(100.0, 0x1, 40.0, 1980),
        GpuSample(100.0, 0x4, 61.0, 1260),
        GpuSample(100.0, 0x48, 59.0, 1500),
        GpuSample(100.0, 0x0, 58.0, 1980),
    ]
    result = span(Script({0: looks}), [A], 3.0, looks=2)
    assert result["throttled"] == ["hardware thermal", "power cap"]
    assert (result["gpus"][0]["temperature_max_c"], result["gpus"][0]["sm_clock_min_mhz"]) == (
        61.0,
        1260,
    )


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, []),
        (0x1 | 0x2 | 0x10 | 0x100, []),
        (0x4, ["power cap"]),
        (0x8, ["hardware slowdown"]),
        (0x8 | 0x80, ["power brake"]),
        (0x20 | 0x40 | 0x8, ["thermal", "hardware thermal"]),
    ],
)
def test_only_some_reasons_are_throttling(bits, names):
    """An idle card, or one whose clocks somebody set, is not slowed down by heat or power."""
    assert throttle_reasons(bits) == names


def test_a_card_that_tells_nothing_is_left_out():
    result = span(Script({0: watts(50.0)}), [A, B], 10.0)
    assert [gpu["index"] for gpu in result["gpus"]] == [0]
    assert span(Script(), [A, B], 10.0) is None


def test_a_card_that_falls_silent_makes_the_sum_unknown():
    """Half of the energy would be a wrong figure, not a smaller one."""
    script = Script({0: watts(50.0), 1: [GpuSample(50.0), GpuSample()]})
    assert span(script, [A, B], 10.0) is None


def test_the_thread_samples_while_a_span_lasts_and_ends_with_it():
    script = Script({0: watts(50.0)}, enough_samples=4)
    meter = PowerMeter(script, [A], sample_every_s=0.001)
    meter.begin()
    assert script.enough.wait(10)
    assert meter.end()["mean_w"] == pytest.approx(50.0)
    sampled = script.sampled
    assert not [thread for thread in threading.enumerate() if thread.name == "power"]
    assert script.sampled == sampled


def test_a_new_span_knows_nothing_of_the_one_before():
    now = [0.0]
    script = Script({0: watts(100.0, 100.0, 20.0)})
    meter = PowerMeter(script, [A], clock=lambda: now[0], sample_every_s=3600)
    results = []
    for _ in range(2):
        meter.begin()
        now[0] += 10
        results.append(meter.end())
    assert [(result["joules"], result["max_w"]) for result in results] == [
        (1000.0, 100.0),
        (200.0, 20.0),
    ]


def test_closing_ends_the_span_and_the_driver():
    script = Script({0: watts(50.0)})
    meter = PowerMeter(script, [A])
    meter.begin()
    meter.close()
    assert script.closed
    assert meter.end() is None
    assert repr(meter) == "<PowerMeter of 1 GPUs, idle>"


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("0, 7, 1", [0]),
        ("0,0", [0]),
        ("GPU-aabb", [1]),
        ("GPU-aa", []),  # both cards begin so
        ("GPU-aabb-2,0", [1, 0]),
        ("MIG-1234", []),
    ],
)
def test_only_visible_cards_count(visible, indices):
    by_name = {name: card for card in (A, B) for name in (str(card.index), card.uuid)}
    assert [card.index for card in named_cards(visible, by_name)] == indices


class Refused(Exception):
    pass


class Unsupported(Refused):
    pass


def binding(**functions):
    """The functions of pynvml that are asked, one card; a function that is not given is not
    supported.
    """
    calls = []

    def unsupported(*_):
        raise Unsupported

    def called(name):
        def call(*arguments):
            calls.append(name)
            return functions.get(name, unsupported)(*arguments)

        return call

    names = (
        "PowerUsage", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons",
        "Temperature", "ClockInfo", "FieldValues", "UUID", "Name",
    )  # fmt: skip
    module = SimpleNamespace(
        NVMLError=Refused,
        NVMLError_NotSupported=Unsupported,
        NVMLError_FunctionNotFound=Unsupported,
        NVMLError_NoPermission=Unsupported,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_FI_DEV_POWER_INSTANT=186,
        NVML_SUCCESS=0,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle {index}",
        **{f"nvmlDeviceGet{name}": called(name) for name in names},
    )
    return module, calls


def field_value(milliwatts, status=0):
    return lambda *_: [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))]


IDENTITY = {"UUID": lambda _: b"GPU-1", "Name": lambda _: "H200"}


def opened(**functions):
    module, calls = binding(**IDENTITY, **functions)
    nvml = DriverNvml(module)
    assert nvml.cards() == [NvmlGpu(0, "GPU-1", "H200")]
    return nvml, calls


@pytest.mark.parametrize("answer", [field_value(0, status=3), field_value(0)])
def test_older_drivers_tell_their_power_in_the_old_way(answer):
    nvml, calls = opened(FieldValues=answer, PowerUsage=lambda _: 55_000)
    assert [nvml.sample(0).power_w for _ in range(3)] == [55.0] * 3
    assert calls.count("FieldValues") == 1  # what is not supported is not asked again


def test_units_of_the_driver_become_watts():
    nvml, _ = opened(
        FieldValues=field_value(700_500),  # the power of the moment counts, not the mean
        PowerUsage=lambda _: 612_000,
        CurrentClocksThrottleReasons=lambda _: 0x4,  # its name in older drivers
    )
    assert (nvml.sample(0).power_w, nvml.sample(0).reasons) == (700.5, 0x4)


def test_what_was_refused_for_a_moment_is_asked_again():
    answers = [Refused(), 55_000]

    def power(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    nvml, _ = opened(PowerUsage=power)
    assert [nvml.sample(0).power_w, nvml.sample(0).power_w] == [None, 55.0]


def test_what_a_card_does_not_report_is_unknown():
    silent, _ = opened()
    assert silent.sample(0) == GpuSample()


def test_a_card_that_cannot_be_opened_is_left_out():
    module, _ = binding(UUID=lambda _: "GPU-1")
    assert DriverNvml(module).cards() == []


def test_without_a_visible_card_there_is_no_meter():
    """With a GPU in the machine or without."""
    assert open_meter("") is None


def waited(answers, timeout_s=10.0):
    now = [0.0]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    held = wait_until_clear(
        lambda: answers.pop(0) if len(answers) > 1 else answers[0],
        {0: 0, 1: GIB},
        timeout_s,
        clock=lambda: now[0],
        sleep=sleep,
    )
    return held, sum(slept)


FULL = {0: 8 * GIB}


def test_waiting_ends_as_soon_as_memory_is_clear():
    clear = {0: 1000, 1: GIB // 2, 2: 9 * GIB}  # the third was not there before
    assert waited([FULL, FULL, clear]) == ({}, 1.0)


def test_waiting_ends_when_its_time_is_up():
    assert waited([FULL], timeout_s=3.0) == (FULL, 3.0)


def test_nobody_waits_for_memory_that_is_not_reported():
    assert waited([None]) == (None, 0)


def test_memory_in_use_counts_the_cards_that_hold_something(script, tmp_path, monkeypatch):
    """A card with no more than a desktop on it is not one of those that serve."""
    rows = (
        "index, memory.total [MiB], memory.used [MiB]\n0, 24576 MiB, 20480 MiB\n1, 24576 MiB, "
        "300 MiB\n"
    )
    (tmp_path / "rows.csv").write_text(rows)
    script(f'cat "{tmp_path / "rows.csv"}"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    expected = {"used_bytes": 20 * GIB, "total_bytes": 24 * GIB, "gpus": 1, "source": "nvidia-smi"}
    assert gpu_memory_in_use() == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_memory_in_use() is None
