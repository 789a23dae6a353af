"""Faults on command: what goes wrong, for which requests, how often. The server carries them out."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec


class FaultKind(Enum):
    REFUSE = "refuse"  # the listener is closed, for `for_s` seconds or until `none`
    SLOW_ACCEPT = "slow-accept"  # a new connection is not read for `delay_ms`
    CLOSE_FIRST = "close-first"
    HANG_FIRST = "hang-first"
    HANG_MID = "hang-mid"
    CLOSE_MID = "close-mid"
    ERROR_500 = "500"
    BUSY_503 = "503"
    LIMIT_429 = "429"
    GARBAGE = "garbage"
    HTML = "html"
    INVALID_JSON = "invalid-json"
    SHORT_BODY = "short-body"
    ENDLESS = "endless"  # an answer that goes on until the client hangs up
    CRASH = "crash"
    NONE = "none"  # forget all faults, listen again

    @property
    def is_mid(self) -> bool:
        """Strikes a running request: the slot is taken, `after_tokens` tokens went out."""
        return self in {FaultKind.HANG_FIRST, FaultKind.HANG_MID, FaultKind.CLOSE_MID, FaultKind.CRASH}


class InjectedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: FaultKind
    times: int | None = 1  # requests (connections for slow-accept) it strikes; None: all of them
    after_tokens: int = 0
    path: str | None = None  # start of the paths it strikes; None: each POST under /v1/
    reset: bool = False  # close with RST instead of FIN
    delay_ms: float = 100.0
    for_s: float | None = None
    retry_after_s: int = 1
    exit_code: int = 1

    @classmethod
    def parse(cls, text: str) -> InjectedFault:
        """Parse a kind alone, `close-mid`, or a JSON object, `{"kind": "close-mid", "after_tokens": 3}`."""
        return msgspec.json.decode(text, type=cls) if text.startswith("{") else cls(FaultKind(text))

    def strikes(self, method: str, path: str) -> bool:
        if self.kind is FaultKind.SLOW_ACCEPT:
            return False
        return path.startswith(self.path) if self.path is not None else method == "POST" and path.startswith("/v1/")


class FaultPlan:
    """The faults still to come, oldest first. A fault leaves when it struck its number of times."""

    def __init__(self) -> None:
        self.faults: list[InjectedFault] = []

    def for_request(self, method: str, path: str) -> InjectedFault | None:
        return self._take(lambda fault: fault.strikes(method, path))

    def for_connection(self) -> InjectedFault | None:
        return self._take(lambda fault: fault.kind is FaultKind.SLOW_ACCEPT)

    def _take(self, wanted: Callable[[InjectedFault], bool]) -> InjectedFault | None:
        for place, fault in enumerate(self.faults):
            if wanted(fault):
                if fault.times is not None and fault.times > 1:
                    self.faults[place] = msgspec.structs.replace(fault, times=fault.times - 1)
                elif fault.times is not None:
                    del self.faults[place]
                return fault
        return None
