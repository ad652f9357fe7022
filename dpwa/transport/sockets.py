"""The two kinds of ZeroMQ socket that nodes use, with bounded queues and frames."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

import zmq

from dpwa.errors import AddressError
from dpwa.transport.addresses import is_ipv6
from dpwa.types import Frame
from dpwa.wire import limits


class Receipt(Protocol):
    """Tells when ZeroMQ needs the frames of a message no more."""

    @property
    def done(self) -> bool:
        """Whether the frames may be changed."""
        ...


class _Copied:
    done = True


_COPIED = _Copied()

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 5_000  # a peer silent for so long is disconnected, and its buffers are freed
STALLED_MS = 5_000  # likewise for one that takes nothing off the wire; heartbeats do not notice
CONNECT_TIMEOUT_MS = 3_000
HANDSHAKE_TIMEOUT_MS = 5_000
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1_000
QUEUED_REQUESTS = 64  # complete messages, for each connection
QUEUED_ANSWERS = 2 * limits.MAX_CREDIT_CHUNKS  # likewise, in both directions
HEADER_SLACK_BYTES = 1024
_TAUGHT_BYTES = 31 * 1024 * 1024


def serving_socket(context: Context, endpoint: str) -> Socket:
    """Return a ROUTER that listens on the endpoint.

    Raises:
        AddressError: the port is in use, or the address is not of this machine.
    """
    router = context.socket(zmq.ROUTER)
    _set_common(router, endpoint)
    router.maxmsgsize = limits.MAX_PUSH_BYTES + HEADER_SLACK_BYTES
    router.rcvhwm = QUEUED_REQUESTS
    router.sndhwm = QUEUED_ANSWERS
    router.tcp_maxrt = STALLED_MS
    router.router_mandatory = True  # a peer that is gone or does not read is told, not dropped
    try:
        router.bind(endpoint)
    except zmq.ZMQError as error:
        router.close(0)
        raise AddressError(_why_not(endpoint, error)) from None
    return router


def bound_endpoint(socket: Socket) -> str:
    """Return the endpoint that a socket listens on, with the port that was found."""
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.decode().rstrip("\0") if isinstance(bound, bytes) else str(bound)


def asking_socket(context: Context, endpoint: str) -> Socket:
    """Return a DEALER made for the endpoint; it keeps reconnecting once `connect` was called."""
    dealer = context.socket(zmq.DEALER)
    _set_common(dealer, endpoint)
    dealer.maxmsgsize = limits.MAX_CHUNK_BYTES + HEADER_SLACK_BYTES
    dealer.rcvhwm = QUEUED_ANSWERS
    dealer.connect_timeout = CONNECT_TIMEOUT_MS
    dealer.reconnect_ivl = RECONNECT_MS
    dealer.reconnect_ivl_max = RECONNECT_MAX_MS
    dealer.immediate = True  # nothing is queued for a peer that is not there
    return dealer


def keep_freed_memory() -> None:
    """Let glibc keep the memory of messages for the next ones.

    By default it gives freed blocks of this size back to the system at once; a stream then spends
    half of its time on page faults. To free one block of nearly 32 MiB, its upper limit, teaches
    it to keep smaller ones (see M_MMAP_THRESHOLD in mallopt(3)), as any training soon does anyway.
    """
    bytearray(_TAUGHT_BYTES)


def receive(socket: Socket) -> list[Frame] | None:
    """Take one waiting message, or return `None`; frames past one too many are dropped unread.

    ZeroMQ hands over whole messages: one that never ends is limited by nothing but its sender.
    """
    try:
        frames: list[Frame] = [socket.recv(zmq.NOBLOCK, copy=False).buffer]
    except zmq.Again:
        return None
    while socket.rcvmore:
        frame = socket.recv(copy=False).buffer
        if len(frames) <= limits.MAX_FRAMES + 1:
            frames.append(frame)
    return frames


def send(socket: Socket, frames: Sequence[Frame], *, is_lent: bool = False) -> Receipt | None:
    """Send one message without waiting; return a receipt, or `None` when it was not taken.

    `is_lent`: the last frame is not copied; it must stay as it is until the receipt is `done`.
    """
    try:
        *first, last = frames
        for frame in first:
            socket.send(frame, zmq.NOBLOCK | zmq.SNDMORE)
        if is_lent:
            return socket.send(last, zmq.NOBLOCK, copy=False, track=True)
        socket.send(last, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return None
        raise
    return _COPIED


def _set_common(socket: Socket, endpoint: str) -> None:
    socket.linger = 0
    socket.ipv6 = is_ipv6(endpoint)
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    socket.handshake_ivl = HANDSHAKE_TIMEOUT_MS


def _why_not(endpoint: str, error: zmq.ZMQError) -> str:
    match error.errno:
        case zmq.EADDRINUSE:
            return f"cannot listen on {endpoint}: the port is already in use"
        case zmq.EADDRNOTAVAIL | errno.ENODEV:
            return (
                f"cannot listen on {endpoint}: not an address of this machine "
                "(set `bind` to the address to listen on)"
            )
        case _:
            return f"cannot listen on {endpoint}: {error.strerror}"
