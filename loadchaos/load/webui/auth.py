"""Access control of the web UI: Host and origin checks, page token, login.

A page from elsewhere that is open in the same browser can send requests to 127.0.0.1. So each request must name us as
its Host (a name that was made to resolve to us does not), a request that changes something must come from our own pages
(Origin), and our own buttons carry a token that only our page knows.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from flask import Flask, Response, abort, redirect, request, session, url_for
from flask_login import UserMixin, login_user

from loadchaos.core.urls import LOOPBACK
from loadchaos.load.locust_main import WEB_PASSWORD_VARIABLE, WEB_TOKEN_VARIABLE

_LINK_ARGUMENT = "token"
_ADMITTED = "loadchaos_admitted"
TOKEN_HEADER = "X-Loadchaos-Token"  # noqa: S105 - the name of a header
_USER = "loadchaos"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_WRONG_PASSWORD_S = 1.0


class _User(UserMixin):
    id = _USER


class LocustWebUi(Protocol):
    """The part of Locust's web UI that is used here and in extension.py."""

    app: Flask
    host: str
    port: int
    web_login: bool
    template_args: dict[str, object]
    auth_args: Any

    @property
    def login_manager(self) -> Any: ...

    def auth_required_if_enabled(self, view: Callable[..., Any]) -> Callable[..., Any]: ...


def protect(web_ui: LocustWebUi) -> str:
    """Install all checks. Returns the token that our page gives to our buttons."""
    app = web_ui.app
    app.config.update(
        SECRET_KEY=secrets.token_hex(),
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_NAME=f"loadchaos-{web_ui.port}",
        MAX_CONTENT_LENGTH=1 << 20,
    )
    app.debug = False
    local = web_ui.host in LOOPBACK
    # Without a password and without a token nobody gets in.
    link_token = None if web_ui.web_login else os.environ.pop(WEB_TOKEN_VARIABLE, secrets.token_urlsafe())
    hosts = {f"{h}:{web_ui.port}" for h in ("127.0.0.1", "localhost", "[::1]")}

    @app.before_request
    def check() -> None:
        if local and request.host not in hosts:
            abort(403, "unknown Host header: open http://127.0.0.1 instead of a host name")
        if request.method not in _SAFE_METHODS:
            _require_own_page()
        if link_token is not None:
            _require_link(link_token)

    def harden(response: Response) -> Response:
        # Locust allows every page to read its answers (CORS), which nothing here needs.
        for name in ("Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"):
            response.headers.pop(name, None)
        response.headers.update(
            {"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}
        )
        return response

    app.after_request_funcs.setdefault(None, []).insert(0, harden)  # the first of them runs last, after CORS
    if web_ui.web_login:
        _login(web_ui, os.environ.pop(WEB_PASSWORD_VARIABLE))
    return secrets.token_urlsafe()


def require_token(token: str) -> None:
    """Abort with 403 unless the request carries our page's token."""
    if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), token.encode()):
        abort(403, "the page token is missing: reload the page")


def _require_link(token: str) -> None:
    """Abort with 403 unless URL or session has the link's token: other users of this machine reach the port, too."""
    given = request.args.get(_LINK_ARGUMENT)
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        session[_ADMITTED] = True
    elif session.get(_ADMITTED) is not True:
        abort(403, "the token is missing: open the URL that loadchaos printed, with its ?token=...")


def _require_own_page() -> None:
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    foreign = origin is not None and origin.partition("://")[2] != request.host
    if foreign or site not in (None, "same-origin", "none"):
        abort(403, "requests from other pages are not allowed")


def _login(web_ui: LocustWebUi, password: str) -> None:
    """Install Locust's own login page. A wrong password delays its sender by 1 s."""
    web_ui.login_manager.user_loader(lambda name: _User() if name == _USER else None)
    web_ui.auth_args = {"username_password_callback": "./loadchaos/login"}

    @web_ui.app.route("/loadchaos/login", methods=["POST"])
    def login() -> Any:
        given = request.form.get("password", "")
        correct = hmac.compare_digest(given.encode(), password.encode())
        if correct and request.form.get("username") == _USER:
            login_user(_User())  # type: ignore[no-untyped-call]  # flask_login ships no types
            return redirect(url_for("locust.index"))
        time.sleep(_WRONG_PASSWORD_S)
        session["auth_error"] = "wrong user or password"
        return redirect(url_for("locust.login"))
