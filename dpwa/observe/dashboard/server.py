"""The web server of the dashboard: the page, a stream of what happens, and no way to change it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpwa.errors import UserError
from dpwa.observe.dashboard.feed import Feed
from dpwa.types import JsonObject

STATIC = Path(__file__).parent / "static"
EVERY_S = 1.0
MOST_READERS = 32
MOST_WAITING = 10  # updates that a reader is behind, before it is let go
LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "dpwa_token_{port}"  # cookies know hosts, not ports
SHUTDOWN_S = 1
DEFAULT_PORT = 8400
PORTS_TRIED = 20  # from the default on

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Streams:
    """Tells all readers of the stream what happens, made once for all of them."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._readers: dict[asyncio.Queue[str | None], str] = {}  # of whom; the oldest first
        self._has_ended = False

    async def run(self) -> None:
        """Tell the readers, every second, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._readers:
                self._tell(_sent("update", self._feed.update()))

    def end(self) -> None:
        """Let all readers go, and take no more."""
        self._has_ended = True
        self._tell(None)

    def read(self, client: str) -> AsyncIterator[str]:
        """Return all that is known, then what happens.

        If there are too many readers, whoever has the most of them loses the oldest.
        """
        readers = Counter(self._readers.values())
        if len(self._readers) >= MOST_READERS:
            most = max(readers, key=lambda each: (readers[each], each == client))
            self._let_go(next(queue for queue, of in self._readers.items() if of == most))
        queue: asyncio.Queue[str | None] = asyncio.Queue(MOST_WAITING)
        if not self._readers:  # nobody was told of what came since the last one left
            self._feed.update()
        snapshot = self._feed.snapshot()
        self._readers[queue] = client  # at once: others may come before it begins to read
        return self._read(queue, snapshot)

    async def _read(
        self, queue: asyncio.Queue[str | None], snapshot: JsonObject
    ) -> AsyncIterator[str]:
        try:
            yield _sent("snapshot", snapshot)
            while not self._has_ended and (text := await queue.get()) is not None:
                yield text
        finally:
            self._readers.pop(queue, None)

    def _tell(self, text: str | None) -> None:
        for queue in list(self._readers):
            if queue.full() or text is None:  # it connects again, and gets a snapshot
                self._let_go(queue)
            else:
                queue.put_nowait(text)

    def _let_go(self, queue: asyncio.Queue[str | None]) -> None:
        del self._readers[queue]
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)


def app_of(feed: Feed, host: str, token: str = "") -> Starlette:
    """Return the web application.

    Args:
        feed: what it tells.
        host: where it is served.
        token: without which nobody is told anything; empty: none is needed.
    """
    streams = Streams(feed)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(streams.run())
        yield
        task.cancel()

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def icon(_: Request) -> Response:
        return FileResponse(STATIC / "favicon.svg")

    async def stream(request: Request) -> Response:
        client = "" if request.client is None else request.client.host
        return StreamingResponse(streams.read(client), media_type="text/event-stream")

    async def node(request: Request) -> Response:
        name = request.path_params["name"]
        found = feed.node(name)
        if found is None:
            return JSONResponse({"error": f"no node is named {name}"}, 404)
        return JSONResponse(found)

    middleware = [Middleware(Guard, token=token)]
    if not token:  # else a page of elsewhere could read it through a name of its own
        hosts = ["127.0.0.1", "localhost", "[::1]", "::1", host]
        middleware.insert(0, Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/favicon.ico", icon),
            Route("/api/stream", stream),
            Route("/api/node/{name:path}", node),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=middleware,
        lifespan=lifespan,
    )
    app.state.streams = streams
    return app


class Guard:
    """Asks for the token, and adds the headers of all answers.

    Args:
        app: what is guarded.
        token: empty: none is needed.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        asked = request.query_params.get("token", "")
        cookie = COOKIE.format(port=(scope.get("server") or ("", 0))[1])
        told = asked or request.cookies.get(cookie, "")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if asked and asked == self._token:
                    headers.append("Set-Cookie", f"{cookie}={asked}; HttpOnly; SameSite=Strict")
            await send(message)

        if secrets.compare_digest(told.encode(), self._token.encode()) or not self._token:
            await self._app(scope, receive, send_guarded)
        else:
            text = "a token is needed: open the address that `dpwa dashboard` printed"
            await PlainTextResponse(text, 401)(scope, receive, send_guarded)


def new_token(host: str) -> str:
    """Return a token for a dashboard that others can reach; empty for one that they cannot."""
    return "" if host in LOOPBACK else secrets.token_urlsafe(16)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: name or address of this machine.
        port: `None`: the usual one, or one of the next if it is in use; 0: any that is free.

    Raises:
        UserError: the port is in use, or the host is none of this machine.
    """
    tried = [port] if port is not None else list(range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for number in tried:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            problem = error
    reason = problem.strerror if problem is not None else ""
    place = f"{host}:{port if port is not None else DEFAULT_PORT}"
    raise UserError(f"--port: expected a free port of this machine (got {place}: {reason})")


def serve(app: Starlette, sockets: list[socket.socket]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    Server(app).run(sockets)


class Server(uvicorn.Server):
    """Lets all readers go when it ends: it would wait for them, as they never go by themselves.

    Args:
        app: what `app_of` returned.
    """

    def __init__(self, app: Starlette) -> None:
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            lifespan="on",
            ws="none",
        )
        super().__init__(settings)
        self._streams: Streams = app.state.streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then all the rest."""
        self._streams.end()
        await super().shutdown(sockets)


def _sent(event: str, data: JsonObject) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {event}\ndata: {text}\n\n"
