"""Access to the dashboard: by an API key as at the gateway, or by a browser session that a key has
opened. Sessions are kept in memory alone, under the digests of their tokens: they end with the
process, or with the key that opened them. Of every request are checked the name it was asked by,
the key (in constant time), and where a form comes from. On loopback no key is wanted; one that is
entered there is what the chat asks the gateway with."""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from collections import deque
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skep.config.access import AcceptedKeys, answer_while, host_of, is_same_origin
from skep.config.keys import KeySpec, given_keys, keys_path
from skep.errors import SkepError, UserError
from skep.monitor.records import DAY_S
from skep.web.context import Site
from skep.web.layout import page
from skep.web.responses import form_of, json_answer, problem, wants_json, way_back
from skep.web.rights import VISITOR, Visitor, view_of, visitor_of

log = logging.getLogger("skep.web")
MOST_WRONG = 10  # keys a source may get wrong within `WITHIN_S`
WITHIN_S = 60.0
MOST_SOURCES = 4096


class LoginThrottle:
    """The last wrong keys of each source, for a bounded number of sources."""

    def __init__(self) -> None:
        self._wrong: dict[str, deque[float]] = {}

    def wait_s(self, source: str, now: float) -> float:
        """Return the seconds until a key from this source is checked again, 0.0 for now."""
        wrong = self._wrong.get(network_of(source))
        if wrong is None or len(wrong) < MOST_WRONG:
            return 0.0
        return max(0.0, wrong[0] + WITHIN_S - now)

    def add_wrong_key(self, source: str, now: float) -> None:
        name = network_of(source)
        wrong = self._wrong.pop(name, None) or deque(maxlen=MOST_WRONG)
        wrong.append(now)
        self._wrong[name] = wrong  # the newest is the last
        while len(self._wrong) > MOST_SOURCES:
            del self._wrong[next(iter(self._wrong))]


def network_of(source: str) -> str:
    """Return an IPv4 address, or the first half of an IPv6 address."""
    if ":" not in source or source.startswith("::"):
        return source
    return ":".join(source.split("%", maxsplit=1)[0].split(":")[:4])


COOKIE = "skep_session"
SESSION_S = 7 * DAY_S
MOST_SESSIONS = 256


class LoginSession(msgspec.Struct, frozen=True):
    """What a key has opened in a browser."""

    ends_at: float
    spec: KeySpec
    key: bytes

    def __repr__(self) -> str:
        return f"<LoginSession of {self.spec.name}>"


class Authenticator:
    """Checks keys and sessions. Where no key is wanted, everybody is admitted."""

    def __init__(self, site: Site) -> None:
        path = keys_path(site.paths)
        if site.public:
            self._keys = None
        else:
            self._keys = AcceptedKeys(path, site.api_key, must_read=site.guarded)
        self._site = site
        self._sessions: dict[bytes, LoginSession] = {}  # by digest of a token; oldest first
        self._attempts = LoginThrottle()

    def wait_s(self, source: str) -> float:
        """Return the seconds for which keys from this source are not checked, after too many wrong
        ones.
        """
        return self._attempts.wait_s(source, self._site.clock())

    def has_key(self, request: Request) -> bool:
        """Return whether its headers hold a valid key; browsers never send one by themselves."""
        given = list(given_keys(request.headers.raw))
        return bool(given) and self._find(given, source_of(request)) is not None

    def visitor(self, request: Request) -> Visitor | None:
        """Return whose request it is; None where a key is wanted and none is shown that is
        accepted.
        """
        token = _session_of(request)
        if (visitor := self._in_session(token)) is not None:
            return visitor
        given = given_keys(request.headers.raw)
        if not self._site.guarded:  # the gateway judges a key that is sent along
            return Visitor(is_admin=not self._site.public, key=given[0] if given else None)
        if not given:
            return None
        spec = self._find(given, source_of(request))
        if spec is None:
            return None
        accepted_key = next(key for key in given if hashlib.sha256(key).hexdigest() == spec.sha256)
        return Visitor(spec.admin, accepted_key, spec)

    def is_still_admitted(self, visitor: Visitor) -> bool:
        """Return whether one that is still being answered may have the rest, with the rights that
        it began with.
        """
        if self._keys is None or visitor.spec is None:
            return True
        if visitor.session is not None and self._in_session(visitor.session) is None:
            return False
        spec = self._keys.current(visitor.spec)
        return spec is not None and spec.admin == visitor.spec.admin

    def enter(self, key: str, source: str) -> str | None:
        """Return the token of a new session, None for a wrong key or after too many wrong ones."""
        given_key = key.encode(errors="replace")
        if (spec := self._find([given_key], source)) is None:
            return None
        now = self._site.clock()
        token = secrets.token_urlsafe(32)
        self._sessions = {
            digest: session for digest, session in self._sessions.items() if session.ends_at > now
        }
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_digest(token)] = LoginSession(now + SESSION_S, spec, given_key)
        return token

    def leave(self, request: Request) -> None:
        self._sessions.pop(_session_of(request), None)

    def _find(self, given: Sequence[bytes], source: str) -> KeySpec | None:
        now = self._site.clock()
        if self._keys is None or self._attempts.wait_s(source, now) > 0:
            return None
        if (spec := self._keys.find(given)) is None:
            self._attempts.add_wrong_key(source, now)
        return spec

    def _in_session(self, token: bytes) -> Visitor | None:
        """Return whose session it is; None for one that has ended, or whose key is no longer
        accepted.
        """
        session = self._sessions.get(token)
        if self._keys is None or session is None or session.ends_at <= self._site.clock():
            return None
        spec = self._keys.current(session.spec)
        if spec is None:
            return None
        return Visitor(spec.admin or not self._site.guarded, session.key, spec, token)


def routes(site: Site, authenticator: Authenticator) -> list[Route]:
    async def show(request: Request) -> Response:
        next_page = way_back(request.query_params.get("next"))
        visitor = authenticator.visitor(request)
        may_stay_out = not site.guarded and not site.public
        if visitor is None or (may_stay_out and visitor.session is None):
            return login_page(site, next_page)
        return RedirectResponse(next_page, 303)

    async def enter(request: Request) -> Response:
        form = await form_of(request)
        source = source_of(request)
        next_page = way_back(form.get("next"))
        token = authenticator.enter(form.get("key", "").strip(), source)
        if token is None:
            if not (wait_s := math.ceil(authenticator.wait_s(source))):
                return login_page(site, next_page, "This key is not valid here.")
            refused = login_page(
                site,
                next_page,
                f"Too many wrong keys from your address: try again in {wait_s} s.",
                429,
            )
            refused.headers["retry-after"] = str(wait_s)
            return refused
        answer = RedirectResponse(next_page, 303)
        # Before a proxy with TLS, ours is http.
        secure = request.headers.get("origin", "").startswith("https://")
        answer.set_cookie(
            COOKIE, token, int(SESSION_S), secure=secure, httponly=True, samesite="strict"
        )
        return answer

    async def leave(request: Request) -> Response:
        authenticator.leave(request)
        answer = RedirectResponse("/login" if site.guarded else "/", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    return [
        Route("/login", show),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]


def login_page(site: Site, next_page: str, wrong: str = "", status: int = 401) -> Response:
    return page(site, "login.html", wanted=next_page, wrong=wrong, status=status if wrong else 200)


def source_of(request: Request) -> str:
    if request.client is not None:
        return request.client.host
    return ""


def _session_of(request: Request) -> bytes:
    return _digest(request.cookies.get(COOKIE, ""))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


# Nothing from elsewhere, nothing inline. A page with a picture of its own style brings its own
# policy.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With `no-referrer` a browser would send `Origin: null` with our own forms.
SECURITY_HEADERS = {
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
        self.app = app
        self._site = site
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False
        request = Request(scope)

        async def send_guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(raw=list(message["headers"]))
                headers.update(SECURITY_HEADERS)
                headers.setdefault("content-security-policy", CONTENT_SECURITY_POLICY)
                headers.setdefault(
                    "cache-control", "no-store" if self._site.guarded else "no-cache"
                )
                message["headers"] = headers.raw
            await send(message)

        try:
            if (refused := self._refusal(request)) is not None:
                await refused(scope, receive, send_guarded)
            elif self._site.guarded and not _is_open(request):
                admitted = partial(self._authenticator.is_still_admitted, visitor_of(request))
                await answer_while(admitted, self.app, scope, receive, send_guarded)
            else:
                await self.app(scope, receive, send_guarded)
        except SkepError as error:
            if began:
                raise
            await problem(view_of(self._site, scope), request, error)(scope, receive, send_guarded)
        except ClientDisconnect:  # in the middle of a form: nobody is left to answer
            return
        # The border of the process: readers get one line, the log another.
        except Exception as error:
            log.error("request.failed path=%s error=%r", scope["path"], error)
            if not began:
                view = view_of(self._site, scope)
                words = "this page could not be rendered"
                if not view.hides_private:
                    words += "; the log says why"
                await problem(view, request, UserError(words), 500)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not admitted; None lets it pass, with its visitor
        in its scope.
        """
        refusal = self._unfit(request)
        if refusal is not None or _is_open(request):
            return refusal
        visitor = self._authenticator.visitor(request)
        if visitor is not None:
            request.scope[VISITOR] = visitor
            return None
        if wants_json(request) or request.method not in _READING:
            return self._key_required(request)
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)

    def _unfit(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused whoever sends it: by its host, its method
        or the page that a form comes from.
        """
        site = self._site
        headers = request.headers
        refuse = partial(problem, view_of(site, request.scope), request)
        host = headers.get("host", "")
        if site.hosts is not None and host_of(host) not in site.hosts:
            message = f"this dashboard does not answer to the name {host[:100]!r}\n"
            return PlainTextResponse(message, status_code=421)
        if request.method in _READING:
            return None
        if request.method != "POST":
            refusal = refuse(UserError("pages are read-only"), 405)
            refusal.headers["allow"] = "GET, HEAD"
            return refusal
        if site.public:
            return refuse(UserError("this dashboard is read-only"), 405)
        sent_with_key = site.guarded and self._authenticator.has_key(request)
        if same_origin(headers) or sent_with_key:
            return None
        return refuse(UserError("forms are accepted only from this dashboard's own pages"), 403)

    def _key_required(self, request: Request) -> Response:
        """Return the answer for programs: no key, a wrong one, or too many wrong ones."""
        if wait_s := math.ceil(self._authenticator.wait_s(source_of(request))):
            message = "too many wrong keys from your address"
            answer = _error_answer(message, f"try again in {wait_s} s", 429)
            answer.headers["retry-after"] = str(wait_s)
            return answer
        hint = "send it as `Authorization: Bearer KEY`"
        answer = _error_answer("an API key is required", hint, 401)
        answer.headers["www-authenticate"] = "Bearer"
        return answer


def _error_answer(message: str, hint: str, status: int) -> Response:
    return json_answer({"error": {"message": message, "hint": hint}}, status)


def _is_open(request: Request) -> bool:
    """Return whether the path is open to all.

    `request.url` is not asked: the `Host` header is a part of it, and anybody may write anything
    into that.
    """
    return bool(request.scope["path"].startswith(OPEN_PATHS))


def same_origin(headers: RequestHeaders) -> bool:
    """Return whether a form was sent by a page of this site.

    Browsers always say where a form comes from.
    """
    origin = headers.get("origin", "")
    host = headers.get("host", "")
    is_near = headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return bool(origin and host) and is_near and is_same_origin(origin, host)
