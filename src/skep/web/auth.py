"""Who may look: keys as the gateway takes them, or a session that a key has opened in a browser.

Sessions are kept in memory and end with the process. Only their digests are kept, and a key is compared with every
stored digest in constant time.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence

from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from skep.gateway.keys import KeyRing, KeySpec, digest_of, given_keys
from skep.report.markup import Markup, join, tag, text
from skep.series import DAY_S
from skep.web.attempts import Attempts
from skep.web.forms import form_of, way_back
from skep.web.layout import page, void
from skep.web.site import Site

COOKIE = "skep_session"
SESSION_S = 7 * DAY_S
MOST_SESSIONS = 256
_LONGEST_KEY = 1024

Headers = Sequence[tuple[bytes, bytes]]


class Door:
    """Opens to keys and to sessions. Where no key is wanted, to everybody."""

    def __init__(self, site: Site) -> None:
        own = (KeySpec("SKEP_API_KEY", digest_of(site.api_key)),) if site.api_key else ()
        self._ring = KeyRing((*(site.keys or ()), *own))
        self._site = site
        self._sessions: dict[bytes, float] = {}  # digest of a token to its end; oldest first
        self._attempts = Attempts()

    def __repr__(self) -> str:
        return f"<Door {len(self._ring)} keys, {len(self._sessions)} sessions>"

    def wait_s(self, source: str) -> float:
        """How long keys from there are not looked at, after too many wrong ones."""
        return self._attempts.wait_s(source, self._site.clock())

    def has_key(self, headers: Headers, source: str) -> bool:
        """Of programs: a browser never sends these headers by itself."""
        given = list(given_keys(headers))
        return bool(given) and self._opens(given, source)

    def admits(self, headers: Headers, source: str) -> bool:
        return not self._site.guarded or self._in_session(headers) or self.has_key(headers, source)

    def enter(self, key: str, source: str) -> str | None:
        """A new session's token; None: no such key, or too many wrong ones before it."""
        if not self._opens([key.encode(errors="replace")], source):
            return None
        now = self._site.clock()
        token = secrets.token_urlsafe(32)
        self._sessions = {known: ends for known, ends in self._sessions.items() if ends > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_digest(token)] = now + SESSION_S
        return token

    def leave(self, headers: Headers) -> None:
        if (token := _token_of(headers)) is not None:
            self._sessions.pop(_digest(token), None)

    def _opens(self, keys: Sequence[bytes], source: str) -> bool:
        now = self._site.clock()
        if self._attempts.wait_s(source, now) > 0:
            return False
        if any(len(key) <= _LONGEST_KEY and self._ring.find(key) is not None for key in keys):
            return True
        self._attempts.note_wrong(source, now)
        return False

    def _in_session(self, headers: Headers) -> bool:
        token = _token_of(headers)
        ends = self._sessions.get(_digest(token)) if token is not None else None
        return ends is not None and ends > self._site.clock()


def routes(site: Site, door: Door) -> list[BaseRoute]:
    async def show(request: Request) -> Response:
        wanted = way_back(request.query_params.get("next"))
        return (
            RedirectResponse(wanted, 303)
            if door.admits(request.headers.raw, source_of(request))
            else login_page(site, wanted)
        )

    async def enter(request: Request) -> Response:
        form = await form_of(request)
        source = source_of(request)
        wanted, token = way_back(form.get("next")), door.enter(form.get("key", "").strip(), source)
        if token is None:
            wait_s = math.ceil(door.wait_s(source))
            if not wait_s:
                return login_page(site, wanted, "That key does not open this dashboard.")
            refused = login_page(site, wanted, f"Too many wrong keys came from there: try again in {wait_s} s.", 429)
            refused.headers["retry-after"] = str(wait_s)
            return refused
        answer = RedirectResponse(wanted, 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, token, max_age=int(SESSION_S), path="/", httponly=True, samesite="strict", secure=secure
        )
        return answer

    async def leave(request: Request) -> Response:
        door.leave(request.headers.raw)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    return [
        Route("/login", show),
        Route("/login", enter, methods=["POST"]),
        Route("/logout", leave, methods=["POST"]),
    ]


def login_page(site: Site, wanted: str, wrong: str = "", status: int = 401) -> Response:
    """A link from elsewhere brings no cookie along; the link on this page does."""
    field: list[Markup] = [
        void("input", name="username", value="skep", autocomplete="username", hidden=""),  # for keepers of passwords
        tag("label", text("API key"), for_="key"),
        void("input", id="key", name="key", type="password", required="", autocomplete="current-password",
             autofocus="", aria_describedby="key-note"),
        void("input", type="hidden", name="next", value=wanted),
        tag("button", text("Open")),
    ]  # fmt: skip
    note = "The same keys open it as open the gateway: skep key add NAME makes one, SKEP_API_KEY is one."
    body = [
        tag("p", text(wrong), class_="banner incomplete", role="alert") if wrong else None,
        tag("form", *field, method="post", action="/login", class_="panel login"),
        tag("p", text(note), class_="below", id="key-note"),
        tag("p", tag("a", text("Already logged in? Go on"), href=wanted), class_="below"),
    ]
    return page(site, "", "A key is wanted", join(part for part in body if part), status=status if wrong else 200)


def source_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _token_of(headers: Headers) -> str | None:
    """Read as browsers send it: cookies of other programs on the same machine, which may hold anything, come along."""
    sent = [cookie_parser(value.decode("latin-1")) for name, value in headers if name == b"cookie"]
    return next((jar[COOKIE] for jar in sent if COOKIE in jar), None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
