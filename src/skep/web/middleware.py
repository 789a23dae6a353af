"""Around every request: the name it was asked by, the key, where a form comes from, headers of every answer.

An error that nobody expected becomes one line for the reader and one line in the log.
"""

from __future__ import annotations

import logging
import math
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skep.config.access import answer_while, host_of, is_same_origin
from skep.errors import SkepError, UserError
from skep.web.auth import Authenticator, source_of
from skep.web.context import Site
from skep.web.responses import json_answer, plain_problem, problem, wants_json

log = logging.getLogger("skep.web")

# Nothing from elsewhere, nothing inline. A page with a picture of its own style brings its own policy.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With `no-referrer` a browser would send `Origin: null` with our own forms.
ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
OPEN_PATHS = ("/login", "/static/", "/healthz")
_READING = ("GET", "HEAD")


class AccessMiddleware:
    """ASGI middleware; the outermost one."""

    def __init__(self, app: ASGIApp, site: Site, authenticator: Authenticator) -> None:
        self.app, self._site, self._authenticator = app, site, authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False

        async def send_guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                self._add_headers(MutableHeaders(raw=message["headers"]))
                message["headers"] = list(message["headers"])
            await send(message)

        request = Request(scope)
        try:
            refused = self._refusal(request)
            if refused is not None:
                await refused(scope, receive, send_guarded)
            elif self._site.guarded and not _is_open(request):
                headers = request.headers.raw
                await answer_while(
                    lambda: self._authenticator.is_still_admitted(headers), self.app, scope, receive, send_guarded
                )
            else:
                await self.app(scope, receive, send_guarded)
        except SkepError as error:
            if began:
                raise
            answer = problem(self._site, error, as_json=wants_json(request))
            await answer(scope, receive, send_guarded)
        except ClientDisconnect:  # in the middle of a form: nobody is left to answer
            return
        except Exception as error:  # the border of the process: readers get one line, the log another
            log.error("request.failed path=%s error=%r", scope["path"], error)
            if not began:
                await self._failed(request)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        site, headers = self._site, request.headers
        if site.hosts is not None and host_of(headers.get("host", "")) not in site.hosts:
            message = f"this dashboard does not answer to the name {headers.get('host', '')[:100]!r}\n"
            return PlainTextResponse(message, status_code=421)
        if request.method not in (*_READING, "POST"):
            refused = self._say(request, 405, "pages are only read")
            refused.headers["allow"] = "GET, HEAD"
            return refused
        if request.method not in _READING:
            if site.public:
                return self._say(request, 405, "this dashboard is read-only")
            if not (
                same_origin(headers) or (site.guarded and self._authenticator.has_key(headers.raw, source_of(request)))
            ):
                return self._say(request, 403, "forms are taken from this dashboard's own pages only")
        if not _is_open(request) and not self._authenticator.is_admitted(headers.raw, source_of(request)):
            return self._unknown(request)
        return None

    def _unknown(self, request: Request) -> Response:
        if wants_json(request) or request.method not in _READING:
            error = {"message": "an API key is wanted", "hint": "send it as `Authorization: Bearer KEY`"}
            wait_s = math.ceil(self._authenticator.wait_s(source_of(request)))
            if wait_s:
                error = {"message": "too many wrong keys came from there", "hint": f"try again in {wait_s} s"}
            answer = json_answer({"error": error}, 429 if wait_s else 401)
            answer.headers.update({"retry-after": str(wait_s)} if wait_s else {"www-authenticate": "Bearer"})
            return answer
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)

    def _say(self, request: Request, status: int, message: str) -> Response:
        if wants_json(request):
            return json_answer({"error": {"message": message, "hint": None}}, status)
        return plain_problem(self._site, message, None, status)

    def _failed(self, request: Request) -> Response:
        message = "this page could not be made"
        return self._say(request, 500, message if self._site.public else f"{message}; the log says why")

    def _add_headers(self, headers: MutableHeaders) -> None:
        for name, value in ALWAYS.items():
            headers[name] = value
        headers.setdefault("content-security-policy", POLICY)
        headers.setdefault("cache-control", "no-store" if self._site.guarded else "no-cache")


def _is_open(request: Request) -> bool:
    """Not of `request.url`: the `Host` header is a part of it, and anybody may write anything into that."""
    return bool(request.scope["path"].startswith(OPEN_PATHS))


def same_origin(headers: Headers) -> bool:
    """Return whether a form was sent by a page of this site. Browsers always say where a form comes from."""
    origin, host = headers.get("origin"), headers.get("host")
    if not origin or not host or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    return is_same_origin(origin, host)


def as_error(status: int, detail: str) -> UserError:
    """Starlette's own refusals in skep's words."""
    known = {404: "there is no such page", 405: "this page is only read"}
    return UserError(known.get(status, detail), hint="the pages are listed above" if status == 404 else None)
