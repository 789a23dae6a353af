"""Small HTML forms as they arrive, and where to go afterwards."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from skep.errors import UserError

LONGEST_BODY = 16_384
MOST_FIELDS = 20


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form sent as `application/x-www-form-urlencoded`; of several of one name, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise UserError(f"a form is wanted, not {kind[:60] or 'nothing'!r}", hint="send it as x-www-form-urlencoded")
    received = b""
    async for part in request.stream():
        received += part
        if len(received) > LONGEST_BODY:
            raise UserError(f"the form is longer than {LONGEST_BODY} bytes", hint="shorten it")
    try:
        return dict(parse_qsl(received.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise UserError("the form cannot be read", hint="send it as UTF-8, with at most 20 fields") from None


def way_back(wanted: str | None) -> str:
    """A page of this site and never one of another."""
    if not wanted or not wanted.startswith("/") or wanted.startswith(("//", "/\\")):
        return "/"
    if any(ord(letter) < 33 for letter in wanted):
        return "/"
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else wanted
