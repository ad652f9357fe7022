"""The two kinds of ZeroMQ sockets that nodes use, with limits for queues and frames."""

from __future__ import annotations

import ctypes
import errno
import functools
import operator
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import zmq

from dpwa.config.endpoints import ipc_path
from dpwa.errors import AddressError
from dpwa.transport.addresses import holder, listening
from dpwa.transport.authorizer import Authorizer
from dpwa.types import Frame
from dpwa.wire import limits

if TYPE_CHECKING:
    from dpwa.transport.keyring import LinkKeys


class Receipt(Protocol):
    """A record of a sent message, which tells whether ZeroMQ still needs the frames."""

    @property
    def done(self) -> bool: ...


@dataclass(frozen=True)
class ReceivedMessage:
    frames: list[Frame]  # the first frame from a ROUTER is the address for the answer
    user_id: str | None  # see `Authorizer.name_of`; `None` if no key is required
    descriptor: int = -1  # of the connection
    goes_on: bool = False  # the message has too many frames, and the caller must drop the rest
    last: zmq.Frame | None = None  # the last frame, which knows the sender's address

    @property
    def source(self) -> str:
        """The sender's IP address, `localhost:...` for a local socket, or "" if unknown."""
        try:
            return "" if self.last is None else str(self.last.get("Peer-Address"))
        except zmq.ZMQError:  # the peer uses the first version of ZMTP
            return ""


class _Copied:
    done = True


_COPIED = _Copied()

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

# Plain numbers, because combining members of an enumeration takes longer than sending.
NOBLOCK, NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
SRCFD = int(zmq.SRCFD)
BUFFER = operator.attrgetter("buffer")

HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 5_000  # a peer that is silent for so long is disconnected
STALLED_MS = HEARTBEAT_TIMEOUT_MS  # also if it reads nothing, because heartbeats still arrive
CONNECT_TIMEOUT_MS = 3_000
HANDSHAKE_TIMEOUT_MS = 5_000
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1_000
BACKLOG = socket.SOMAXCONN  # if it is full, a peer must try again, one second later
_MAX_FRAMES_READ = limits.MAX_FRAMES + 2  # an address, and one frame too many
QUEUED_ANSWERS = 2 * limits.MAX_CREDIT_CHUNKS  # maximum number that a peer has not read
HEADER_SLACK_BYTES = 1024
_TAUGHT_BYTES = 31 * 1024 * 1024
_DROPPED_AT_ONCE = 4096


def serving_socket(
    context: Context,
    endpoint: str,
    authorizer: Authorizer | None = None,
    handshake_ms: int = HANDSHAKE_TIMEOUT_MS,
    listener: socket.socket | None = None,
) -> Socket:
    """Return a ROUTER that listens on the endpoint. An authorizer checks its connections.

    The authorizer must have an authenticator. If there is a `listener` for the endpoint, the ROUTER
    accepts its connections. See `listening_socket`.

    The receive queue has no limit, because peers keep within their credit (see `wire.limits`). With
    a full queue, untrusted peers could end the process. If a connection breaks while ZeroMQ waits
    for room, libzmq 4.3.5 still answers the pings ("Assertion failed: !_io_error").

    Raises `AddressError` if the port is in use, or if the address does not belong to this machine.
    """
    router = context.socket(zmq.ROUTER)
    _set_common(router, endpoint)
    router.maxmsgsize = limits.MAX_PUSH_BYTES + HEADER_SLACK_BYTES
    router.rcvhwm = 0
    router.handshake_ivl = handshake_ms
    router.sndhwm = QUEUED_ANSWERS
    router.tcp_maxrt = STALLED_MS
    router.router_mandatory = True  # report messages to lost peers instead of dropping them
    try:
        if authorizer is not None:
            authorizer.guard(router)
        if listener is not None:
            router.setsockopt(zmq.USE_FD, os.dup(listener.fileno()))  # the ROUTER closes the copy
        router.bind(endpoint)
    except (zmq.ZMQError, OSError) as error:
        router.close(0)
        raise AddressError(_why_not(endpoint, error)) from None
    return router


def listening_socket(endpoint: str) -> socket.socket:
    """Return a listening socket that several ROUTERs use in turn, or raise `AddressError`.

    The address stays in use in between, even if a forked process has a copy of a ROUTER's socket.
    """
    path = ipc_path(endpoint)
    try:
        if path:
            Path(path).unlink(missing_ok=True)  # left by a process that was killed
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen(BACKLOG)
        else:
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            listener = listening(host.strip("[]"), int(port), BACKLOG)
    except OSError as error:
        raise AddressError(_why_not(endpoint, error)) from None
    listener.setblocking(False)
    return listener


def bound_endpoint(socket: Socket) -> str:
    """Return the endpoint of a listening socket, with the actual port."""
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode().rstrip("\0") if isinstance(bound, bytes) else str(bound)


def asking_socket(context: Context, endpoint: str, keys: LinkKeys | None = None) -> Socket:
    """Return a DEALER for the endpoint. After `connect` was called, it reconnects by itself."""
    dealer = context.socket(zmq.DEALER)
    _set_common(dealer, endpoint)
    if keys is not None:
        dealer.curve_publickey = keys.own.public.encode()
        dealer.curve_secretkey = keys.own.secret.reveal()
        dealer.curve_serverkey = keys.theirs.encode()
    dealer.maxmsgsize = limits.MAX_CHUNK_BYTES + HEADER_SLACK_BYTES
    dealer.rcvhwm = 0  # no limit, because credit limits the answers
    dealer.connect_timeout = CONNECT_TIMEOUT_MS
    dealer.reconnect_ivl = RECONNECT_MS
    dealer.reconnect_ivl_max = RECONNECT_MAX_MS
    dealer.immediate = True  # queue nothing for a peer that is not connected
    return dealer


@functools.cache  # once in a process, because glibc remembers it
def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed messages for later messages.

    By default, glibc returns freed blocks of this size to the system at once, and a stream then
    spends half of its time on page faults. Freeing one block of nearly 32 MiB, the upper limit,
    makes glibc keep smaller blocks (see M_MMAP_THRESHOLD in mallopt(3)), as training does anyway.
    """
    np.empty(_TAUGHT_BYTES, np.uint8)  # allocated without touching the memory


def give_back_memory() -> None:
    """Return free memory to the system. By default, glibc keeps millions of small blocks."""
    with suppress(OSError, AttributeError):  # on systems without glibc
        ctypes.CDLL(None).malloc_trim(0)


def receive_from(socket: Socket, *, is_named: bool) -> ReceivedMessage | None:
    """Receive a message and its sender. `is_named`: an authorizer checks connections."""
    frames = receive(socket)
    if frames is None:
        return None
    user_id = _user_id(frames[0]) if is_named else None
    last = frames[-1]
    goes_on = len(frames) == _MAX_FRAMES_READ and last.more
    return ReceivedMessage(list(map(BUFFER, frames)), user_id, _descriptor(last), goes_on, last)


def receive(socket: Socket) -> list[zmq.Frame] | None:
    """Receive one waiting message, or return `None`. Frames after the first one beyond
    `MAX_FRAMES` are left.
    """
    try:
        frame = socket.recv(NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more and len(frames) < _MAX_FRAMES_READ:
        frame = socket.recv(copy=False)
        frames.append(frame)
    return frames


def drop_frames(socket: Socket) -> bool:
    """Drop up to a few thousand frames of an unfinished message. Return whether frames follow."""
    return all(socket.recv(copy=False).more for _ in range(_DROPPED_AT_ONCE))


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(SRCFD))
    except zmq.ZMQError:  # the peer uses the first version of ZMTP, or sends garbage
        return -1


def _user_id(frame: zmq.Frame) -> str | None:
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:  # no key is required
        return None


def send_frames(
    socket: Socket, frames: Sequence[Frame], *, is_lent: bool = False
) -> Receipt | None:
    """Send one message without waiting. Return a receipt, or `None` if the message was not sent.

    `is_lent`: the last frame is not copied, and must not change until the receipt is `done`.
    """
    try:
        *first, last = frames
        for frame in first:
            socket.send(frame, NOBLOCK_MORE)
        if is_lent:
            return socket.send(last, NOBLOCK, copy=False, track=True)
        socket.send(last, NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return None
        raise
    return _COPIED


def _set_common(socket: Socket, endpoint: str) -> None:
    socket.linger = 0
    socket.ipv6 = endpoint.startswith("tcp://[")
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_TIMEOUT_MS


def _why_not(endpoint: str, error: OSError | zmq.ZMQError) -> str:
    match error.errno:
        case zmq.EADDRINUSE:
            port = int(endpoint.rpartition(":")[2])
            return (
                f"cannot listen on {endpoint}: the port is already in use{holder(port)}. End that "
                "process, or give the node a different port (`dpwa launch -n N` finds free ports) "
                "[DPWA-E051]"
            )
        case zmq.EADDRNOTAVAIL | errno.ENODEV:
            return (
                f"cannot listen on {endpoint}: not an address of this machine. Start the node "
                "on its own machine, or set `bind` to the address to listen on [DPWA-E051]"
            )
        case _:
            return f"cannot listen on {endpoint}: {error.strerror} [DPWA-E051]"
