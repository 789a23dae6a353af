"""What went wrong with a probe, in one word and one line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skep.errors import EndpointError, SkepError, UserError
from skep.monitor.records import Probe, one_line
from skep.store.records import Request
from skep.wire.client import WireFailure

LONGEST = 300
BUSY = "busy"  # it is there and has no room: neither a figure nor an outage
_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_MARKUP = re.compile(r"<\s*(?:!doctype|html|head|title)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProbeFault:
    """`kind`: url, connect, timeout, closed, protocol, auth, busy, http, not_json, no_model, no_usage, ..."""

    kind: str
    text: str

    def without(self, secret: str | None) -> ProbeFault:
        """A server may repeat the key that it refuses."""
        return ProbeFault(self.kind, self.text.replace(secret, "***")) if secret else self


class ProbeFailed(Exception):
    def __init__(self, fault: ProbeFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def fault_of(error: Exception) -> ProbeFault:
    """Of whatever ended a probe before its requests were made."""
    if isinstance(error, ProbeFailed):
        return error.fault
    if isinstance(error, WireFailure):
        return ProbeFault(error.kind, _line(str(error)))
    if isinstance(error, EndpointError):
        behind = error.__context__
        if isinstance(behind, WireFailure):
            return ProbeFault(behind.kind, _line(error.message))
        status = _STATUS.search(error.message)
        return ProbeFault(_kind_of_status(int(status[1])) if status else "not_json", _line(error.message))
    if isinstance(error, UserError):
        kind = "url" if "URL" in error.message else "no_model" if "serve" in error.message else "settings"
        return ProbeFault(kind, _line(error.message))
    if isinstance(error, SkepError):
        return ProbeFault("error", _line(error.message))
    return ProbeFault("error", _line(f"{type(error).__name__}: {error}"))


def probe_error(probe: Probe) -> EndpointError:
    """Return the error of a failed probe that somebody asked for."""
    hint = f"`skep monitor status` shows it; it counts as a failed probe of `{probe.target}`"
    if probe.error_kind == BUSY:
        hint = "the target answered that it is busy; this does not count as an outage"
    return EndpointError(f"{probe.target}: {probe.error or probe.error_kind}", hint=hint)


def fault_of_row(row: Request) -> ProbeFault | None:
    """Of a request; None: it succeeded."""
    if row.error_kind is None:
        return None
    kind, text = row.error_kind, row.error or row.error_kind
    if kind.startswith("http_"):
        text = "a page instead of JSON" if _MARKUP.search(text) else text
        status = row.status or 0
        kind = "no_model" if status == 404 and "model" in text.lower() else _kind_of_status(status)
        return ProbeFault(kind, _line(f"HTTP {status}: {text}"))
    if kind == "garbage":
        return ProbeFault("not_json", _line(text))
    return ProbeFault(kind, _line(text))


def _kind_of_status(status: int) -> str:
    return "auth" if status in (401, 403) else BUSY if status == 429 else "http"


def _line(text: str) -> str:
    return one_line(text)[:LONGEST]
