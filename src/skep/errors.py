"""Every error skep raises on purpose.

    SkepError                 exit 1
    ├── UserError             exit 2   the caller can mend it: a value, a flag, a file
    │   └── DoesNotFit        exit 3   the request is fine, the machine is too small
    ├── WeightsError          exit 1   weights missing, damaged, or not to be had
    ├── EngineError           exit 1   an engine did not start, died, or answered nonsense
    ├── EndpointError         exit 1   a URL that does not answer as an OpenAI-compatible endpoint
    should │   └── KeyRefused        exit 1   it answers, and wants another API key, or one at all
    ├── GatewayError          exit 1 ├── StoreError            exit 1 └── Regression
    exit 4   a measurement is worse than the one it was held against

A message says what, with which value; the hint says what to do next. Ports translate foreign
exceptions into these."""

from __future__ import annotations


class SkepError(Exception):
    """Root. `hint` is one line that says what to do next, or None."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(SkepError):
    exit_code = 2


class DoesNotFit(UserError):
    exit_code = 3


class WeightsError(SkepError):
    pass


class EngineError(SkepError):
    pass


class EndpointError(SkepError):
    pass


class KeyRefused(EndpointError):
    pass


class GatewayError(SkepError):
    pass


class StoreError(SkepError):
    pass


class Regression(SkepError):
    exit_code = 4


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group of tasks, however deep: it is the one to tell."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
