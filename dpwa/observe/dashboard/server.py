"""The web server of the dashboard. It serves the page and the data, and cannot change a run."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
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
from dpwa.observe.events import RunEvent, keep_event
from dpwa.observe.figures import INDEX, NAMES
from dpwa.observe.history import Floats
from dpwa.observe.rates import ACTIVITIES, since_restart
from dpwa.observe.rows import NodeRow, groups, missing, rows_of, trains
from dpwa.observe.run_log import plain
from dpwa.observe.run_view import Followed, RunView
from dpwa.transport.addresses import listening
from dpwa.types import JsonObject
from dpwa.wire.watching import PEER_ENTRY

FRESH_S = 15.0  # edges show the merges of this time
MAX_POINTS = 400  # points of each node in a snapshot. With many nodes, each node has fewer
MAX_POINTS_OF_ALL = 16_000
MAX_EDGES = 256
FIRST_EVENTS = 200
MAX_SENT_EVENTS = 4_000  # events that are remembered, so that each is sent once
BUDGET_POINTS = 120

# The figures of a point. See `_points`.
_POINT = ("loss", "consensus_distance", "clock")


class Feed:
    """Returns the state of a run, and its changes since the last call.

    Args:
        view: returns the current view of the run.
    """

    def __init__(self, view: Callable[[], RunView]) -> None:
        self._view = view
        self._told: dict[str, float] = {}  # time of the last sent point of each node
        self._events: deque[RunEvent] = deque(maxlen=MAX_SENT_EVENTS)  # the sent events
        self._known: set[RunEvent] = set()

    def snapshot(self) -> JsonObject:
        """Return the state of the run, and all points and events up to the last `update`."""
        view = self._view()
        if not self._told:
            self._take(view)
        most = max(MAX_POINTS_OF_ALL // max(len(view.nodes), 1), 50)
        points = {}
        for node in view.nodes:
            rows = node.history.since()
            rows = rows[rows[:, 0] <= self._told.get(node.name, -math.inf)]
            points[node.name] = _points(_thinned(rows, min(most, MAX_POINTS)))
        return {
            **_state(view),
            "points": points,
            "events": [_event(event) for event in list(self._events)[-FIRST_EVENTS:]],
        }

    def update(self) -> JsonObject:
        """Return the state of the run, and the new points and events."""
        view = self._view()
        points, events = self._take(view)
        return {**_state(view), "points": points, "events": [_event(event) for event in events]}

    def node(self, name: str) -> JsonObject | None:
        """Return the details of one node, or `None` if no node has this name."""
        found = next((node for node in self._view().nodes if node.name == name), None)
        if found is None:
            return None
        rows = found.history.since()
        newest = rows[-1, 1:] if len(rows) else np.full(len(NAMES), math.nan)
        return {
            "name": name,
            "budget": _budget(since_restart(rows)),
            "peers": [
                {key: plain(getattr(peer, key)) for key in PEER_ENTRY} for peer in found.peers
            ],
            "figures": {key: plain(newest[index]) for key, index in INDEX.items()},
        }

    def _take(self, view: RunView) -> tuple[JsonObject, list[RunEvent]]:
        points: JsonObject = {}
        for node in view.nodes:
            # One older point is needed, because a rate needs two points.
            since = self._told.get(node.name, -math.inf)
            rows = node.history.since(since - 20.0)
            first = int(np.searchsorted(rows[:, 0], since, "right"))
            if first < len(rows):
                points[node.name] = _points(rows[max(first - 1, 0) :])[1 if first else 0 :]
                self._told[node.name] = float(rows[-1, 0])
        events = [event for event in view.events if event not in self._known]
        for event in events:
            keep_event(self._events, event)
        self._known = set(self._events) if len(self._known) > 2 * MAX_SENT_EVENTS else self._known
        self._known.update(events)
        return points, events


def _state(view: RunView) -> JsonObject:
    nodes = {node.name: node for node in view.nodes}
    rows = rows_of(view, losses=1)
    return {
        "time": view.time,
        "through": view.through,
        "has_ended": view.has_ended,
        "title": _title(view, rows),
        "nodes": [_node(row, nodes[row.name], trains=trains(rows)) for row in rows],
        "edges": _edges(view),
        "groups": groups(rows),
        "missing": missing(rows),
    }


def _title(view: RunView, rows: Sequence[NodeRow]) -> str:
    """Return the algorithm, and the topology if nodes use it to pick peers."""
    told = next((node.answer for node in view.nodes if node.answer is not None), None)
    if told is None or not trains(rows):
        return ""  # the nodes seem to use only collectives or tables
    return told.algorithm if told.sync else f"{told.algorithm}, topology {told.topology}"


def _node(row: NodeRow, node: Followed, *, trains: bool) -> JsonObject:
    rates, answer = row.rates, node.answer
    return {
        "name": row.name,
        "state": row.state,
        "waits_for": row.waits_for,
        "through": row.through,
        "verdicts": [asdict(verdict) for verdict in row.verdicts],
        "loss": plain(row.loss),
        "clock": plain(row.clock),
        "taken": plain(row.steps),
        "consensus_distance": plain(row.consensus_distance),
        "score": plain(row.score),
        "steps_per_s": plain(rates.steps_per_s),
        "merges_per_s": plain(rates.merges_per_s),
        "rounds_per_s": plain(rates.rounds_per_s),
        "averages": row.averages,
        "in_sync": row.in_sync,
        "out_of_sync_s": plain(row.out_of_sync_s),
        "shares": rates.shares,
        "received_per_s": plain(rates.received_per_s),
        "sent_per_s": plain(rates.sent_per_s),
        "mapped_per_s": plain(rates.mapped_per_s),
        "staleness": plain(rates.staleness),
        "host": None if answer is None else answer.host,
        "pid": None if answer is None else answer.pid,
        "algorithm": answer.algorithm if answer and trains else None,
        "topology": answer.topology if answer and trains and not row.averages else None,
        "group": None if answer is None else answer.group,
        "endpoint": node.endpoint,
        "problem": row.problem,
        "silent_s": node.silent_s,
    }


def _edges(view: RunView) -> list[JsonObject]:
    """Return the merges of the last `FRESH_S` seconds, newest first."""
    found = [
        {"from": peer.name, "to": node.name, "age_s": peer.merged_s, "staleness": peer.staleness}
        for node in view.nodes
        if not node.silent_s
        for peer in node.peers
        if peer.merged_s is not None and peer.merged_s <= FRESH_S
    ]
    found.sort(key=lambda edge: edge["age_s"] or 0.0)
    return found[:MAX_EDGES]


def _points(rows: Floats) -> list[list[float | str | None]]:
    """Return `[time, loss, consensus distance, steps/s, clock]` of each sample."""
    steps = np.diff(rows[:, 1 + INDEX["steps"]], prepend=math.nan)
    seconds = np.diff(rows[:, 0], prepend=math.nan)
    speeds = np.where(steps >= 0, steps / seconds, math.nan)
    columns = [rows[:, 1 + INDEX[name]] for name in _POINT]
    points = zip(rows[:, 0], columns[0], columns[1], speeds, columns[2], strict=True)
    return [[plain(value) for value in point] for point in points]


def _thinned(rows: Floats, most: int) -> Floats:
    """Return at most `most` samples, evenly over time, including the newest."""
    stride = -(-len(rows) // most) if most else 1
    return rows[(len(rows) - 1) % stride :: stride] if stride > 1 else rows


def _budget(rows: Floats) -> list[list[float | str | None]]:
    """Return `[time, train, publish, wait, merge]` of each sample, as shares of the time."""
    rows = _thinned(rows, BUDGET_POINTS)
    spent = np.diff(rows[:, [1 + INDEX[f"{activity}_s"] for activity in ACTIVITIES]], axis=0)
    total = spent.sum(axis=1, keepdims=True)
    shares = np.divide(spent, total, out=np.full_like(spent, math.nan), where=total > 0)
    times = rows[1:, 0]
    return [[plain(t), *map(plain, share)] for t, share in zip(times, shares, strict=True)]


def _event(event: RunEvent) -> JsonObject:
    return {key: value for key, value in asdict(event).items() if key != "number"}


STATIC = Path(__file__).parent / "static"
EVERY_S = 1.0
MAX_READERS = 32
MAX_WAITING = 10  # unread updates. The server disconnects a reader that has more
LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "dpwa_token_{port}"  # with the port, because browsers send a cookie to all ports of a host
SHUTDOWN_S = 1
BACKLOG = 128
DEFAULT_PORT = 8400
PORTS_TRIED = 20  # starting at the default port

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Streams:
    """Sends updates to all open dashboard pages (readers). Each update is computed only once."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._readers: dict[asyncio.Queue[str | None], str] = {}  # the clients, oldest reader first
        self._has_ended = False

    async def feed_readers(self) -> None:
        """Send an update to all readers every second, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._readers:
                self._tell(_sent("update", self._feed.update()))

    def release_readers(self) -> None:
        """Disconnect all readers, and accept no more."""
        self._has_ended = True
        self._tell(None)

    def open_stream(self, client: str) -> AsyncIterator[str]:
        """Return an iterator over a snapshot and all later updates, as server-sent events.

        If there are too many readers, the oldest reader of the client with most readers is
        disconnected.
        """
        readers = Counter(self._readers.values())
        if len(self._readers) >= MAX_READERS:
            most = max(readers, key=lambda each: (readers[each], each == client))
            self._let_go(next(queue for queue, of in self._readers.items() if of == most))
        queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_WAITING)
        if not self._readers:  # include the changes since the last reader left
            self._feed.update()
        snapshot = self._feed.snapshot()
        self._readers[queue] = client  # now, because others may come before this one reads
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
            if queue.full() or text is None:  # the page will connect again, and get a snapshot
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
        feed: the source of the data.
        host: the host that serves the application.
        token: the token that readers must send. If it is empty, they need none.
    """
    streams = Streams(feed)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(streams.feed_readers())
        yield
        task.cancel()

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def icon(_: Request) -> Response:
        return FileResponse(STATIC / "favicon.svg")

    async def stream(request: Request) -> Response:
        client = "" if request.client is None else request.client.host
        return StreamingResponse(streams.open_stream(client), media_type="text/event-stream")

    async def node(request: Request) -> Response:
        name = request.path_params["name"]
        found = feed.node(name)
        if found is None:
            return JSONResponse({"error": f"no node is named {name}"}, 404)
        return JSONResponse(found)

    middleware = [Middleware(Guard, token=token)]
    if not token:  # else another page could read the data through its own host name
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
    """Checks the token of each request, and adds `HEADERS` to each answer.

    Args:
        app: the application to guard.
        token: the token that requests must have. If it is empty, they need none.
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
            text = "This page needs a token. Open the address that `dpwa dashboard` printed."
            await PlainTextResponse(text, 401)(scope, receive, send_guarded)


def new_token(host: str) -> str:
    """Return a token, or "" if only this machine can reach the dashboard on this host."""
    return "" if host in LOOPBACK else secrets.token_urlsafe(16)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens for connections to the dashboard.

    Args:
        host: name or address of this machine.
        port: number of the port. 0: any free port. `None`: the default port, or one of the next
            ports if it is in use.

    Raises:
        UserError: the port is in use, or this machine does not have the host.
    """
    tried = [port] if port is not None else list(range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED))
    reason = ""
    for number in tried:
        try:
            return listening(host, number, BACKLOG)
        except UnicodeError:
            reason = "this is not a valid host name"
        except OSError as error:
            reason = error.strerror or str(error)
    place = f"{host}:{port if port is not None else DEFAULT_PORT}"
    raise UserError(
        f"--port: expected a free port of this machine (got {place}: {reason}) [DPWA-E251]"
    )


class Server(uvicorn.Server):
    """The HTTP server. It closes all streams first when it stops, because readers never leave.

    Args:
        app: the application, from `app_of`.
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
        """Close the streams, then the other connections."""
        self._streams.release_readers()
        await super().shutdown(sockets)


def _sent(event: str, data: JsonObject) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {event}\ndata: {text}\n\n"
