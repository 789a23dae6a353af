"""Power limits of cards: read, set for a while, and set back whatever happens."""

import pytest

from skep.errors import UserError
from skep.host.power_cap import Cap, DriverLimiter, can_set, power_caps, read_caps, restore_caps


class Refused(Exception):
    pass


class Nvml:
    """What pynvml has of it. Card 1 tells nothing."""

    NVMLError = Refused

    def __init__(self, *, may_set=True):
        self.limit = {0: 350_000, 2: 300_000}
        self.closed = 0
        self._may_set = may_set

    def nvmlDeviceGetCount(self):  # noqa: N802 - NVML's own names
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index not in self.limit:
            raise Refused("Not Supported")
        return index

    def nvmlDeviceGetPowerManagementLimitConstraints(self, _handle):  # noqa: N802
        return [100_000, 366_000]

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _handle):  # noqa: N802
        return 350_000

    def nvmlDeviceGetPowerManagementLimit(self, handle):  # noqa: N802
        return self.limit[handle]

    def nvmlDeviceSetPowerManagementLimit(self, handle, milliwatts):  # noqa: N802
        if not self._may_set:
            raise Refused("Insufficient Permissions")
        self.limit[handle] = milliwatts

    def nvmlShutdown(self):  # noqa: N802
        self.closed += 1


def test_a_card_that_does_not_tell_is_left_out():
    caps = DriverLimiter(Nvml()).caps()
    assert caps == [Cap(0, 100.0, 350.0, 350.0, 366.0), Cap(2, 100.0, 350.0, 300.0, 366.0)]


@pytest.mark.parametrize(("indices", "meanwhile"), [((), {0: 280_000, 2: 240_000}), ((2,), {0: 350_000, 2: 240_000})])
def test_each_card_gets_back_its_own_limit_on_any_exit(indices, meanwhile):
    nvml, seen = Nvml(), {}

    def interrupted():
        with power_caps(0.8, indices, limiter=DriverLimiter(nvml)):
            seen.update(nvml.limit)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == meanwhile
    assert nvml.limit == {0: 350_000, 2: 300_000}
    assert nvml.closed == 1


@pytest.mark.parametrize(
    ("share", "indices", "nvml", "words"),
    [
        (0.2, (), Nvml(), "20% of 350 W is beyond what GPU 0 takes"),
        (0.8, (1,), Nvml(), "GPU 1 does not tell its power limit"),
        (0.8, (), Nvml(may_set=False), "cannot be set to 280 W: Insufficient Permissions"),
    ],
)
def test_what_cannot_be_set_is_one_clear_line(share, indices, nvml, words):
    with pytest.raises(UserError, match=words), power_caps(share, indices, limiter=DriverLimiter(nvml)):
        pass
    assert nvml.limit == {0: 350_000, 2: 300_000}


def test_limits_are_restored_by_another_process():
    nvml = Nvml()
    nvml.limit = {0: 200_000, 2: 200_000}
    restore_caps({0: 350.0, 1: 1.0, 2: 300.0}, limiter=DriverLimiter(nvml))
    assert nvml.limit == {0: 350_000, 2: 300_000}


def test_a_machine_without_cards_has_none_to_set():
    if read_caps():
        pytest.skip("there is a card here")
    assert not can_set()
    restore_caps({})
    with pytest.raises(UserError, match="no card here takes a power limit of 80%"), power_caps(0.8):
        pass
