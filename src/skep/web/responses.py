"""Answers as JSON or an error page, and the fields of a form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from skep.errors import SkepError, UserError
from skep.web.context import Site
from skep.web.layout import page


class NotFound(UserError):
    """A run or a tuning that is not in the store. Answered with 404."""


class AdminsOnly(UserError):
    """A page or an act that is for admins, asked for with a client's key. Answered with 403."""

    def __init__(self) -> None:
        message = "this is the owner's: it needs an admin's key"
        hint = "`skep key add NAME --admin` makes one; or open the dashboard on the machine itself"
        super().__init__(message, hint=hint)


@contextmanager
def or_not_found() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise NotFound(error.message, hint=error.hint) from None


def json_answer(document: Any, status: int = 200) -> Response:
    return Response(json_text(document) + "\n", status_code=status, media_type="application/json")


def json_text(document: Any) -> str:
    """Return the document as one line.

    Dataclasses become objects, NaN and infinity become null.
    """
    return msgspec.json.encode(document, enc_hook=str).decode()


def wants_json(request: Request) -> bool:
    return str(request.scope["path"]).startswith(("/api/", "/live", "/metrics"))


def problem(site: Site, request: Request, error: SkepError, status: int | None = None) -> Response:
    """Return an error as one line and what to do next.

    What went wrong inside is not told in public: it may name a path.
    """
    message = error.message
    hint = error.hint
    if site.hides_private and not isinstance(error, UserError):
        message = "this cannot be shown right now"
        hint = None
    code = status or _status_of(error)
    if wants_json(request):
        return json_answer({"error": {"message": message, "hint": hint}}, code)
    return page(site, "problem.html", message=message, hint=hint, status=code)


def _status_of(error: SkepError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, AdminsOnly):
        return 403
    return 400 if isinstance(error, UserError) else 500


LONGEST_BODY = 16_384
MOST_FIELDS = 20


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form sent as `application/x-www-form-urlencoded`; of several of one
    name, the last.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise UserError(
            f"expected a form, not {kind[:60] or 'nothing'!r}",
            hint="send it as x-www-form-urlencoded",
        )
    received = await body_of(request, LONGEST_BODY, "the form", "shorten it")
    try:
        return dict(
            parse_qsl(received.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        )
    except ValueError:
        raise UserError(
            "the form cannot be read", hint="send it as UTF-8, with at most 20 fields"
        ) from None


async def body_of(request: Request, max_bytes: int, name: str, hint: str) -> bytes:
    received = b""
    async for part in request.stream():
        received += part
        if len(received) > max_bytes:
            raise UserError(f"{name} is longer than {max_bytes} bytes", hint=hint)
    return received


def way_back(address: str | None) -> str:
    """Return the address where it is a page of this site, else `/`."""
    if (
        not address
        or not address.startswith("/")
        or address.startswith(("//", "/\\"))
        or min(address) < "!"
    ):
        return "/"
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    if parts.scheme or parts.netloc:
        return "/"
    return address


def report_answer(report: str) -> Response:
    """Return one file: a page of its own, that allows itself no script and no other file."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return HTMLResponse(report, headers={"content-security-policy": policy})
