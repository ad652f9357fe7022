"""RxThread owns the listening socket, and passes each message to the service of its type."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import zmq

from dpwa.errors import AddressError, ClosedError, ProtocolError, VersionError
from dpwa.node.node_thread import NodeThread
from dpwa.node.serving.admission import AdmissionControl, Clients
from dpwa.node.serving.service import Reply, Service
from dpwa.runtime import SYSTEM, Runtime, can_open
from dpwa.transport.authenticator import Authenticator
from dpwa.transport.ipc import claimed
from dpwa.transport.sockets import (
    Context,
    Receipt,
    ReceivedMessage,
    Socket,
    bound_endpoint,
    give_back_memory,
    listening_socket,
    send_frames,
    serving_socket,
)
from dpwa.types import Frame
from dpwa.wire.messages import GoAway, Message, Refused, decode, encode

log = logging.getLogger("dpwa.rx")


IDLE_S = 1.0
MESSAGES_PER_TURN = 16  # before the thread handles calls and deadlines
BUSY_S = 0.01
LISTEN_AGAIN_S = 0.1
LAST_WORDS_MS = 100  # time to send the last messages of services when the node ends
SHORT_AGAIN_S = 60.0
# After such times, ZeroMQ has freed the data of a closed connection. On a busy machine it is late.
GIVE_BACK_AFTER_S = (5.0, 20.0, 60.0, 180.0)


class RxThread(NodeThread):
    """Serves peers until it is stopped. No untrusted message can end it."""

    def __init__(
        self,
        name: str,
        zmq_context: Context,
        endpoint: str,
        runtime: Runtime,
        admission: AdmissionControl,
        keys_changed: Callable[[], None],
        most_clients: int,
    ) -> None:
        self._name = name
        super().__init__(runtime, f"dpwa-rx-{name}")
        self.admission = admission
        self._keys_changed = keys_changed
        self._zmq_context = zmq_context
        self._endpoint = endpoint
        self.endpoint = endpoint
        self._services: dict[type[Any], Service] = {}
        self._loads: dict[str, Callable[[], object]] = {}  # load services, by module of messages
        self._unloaded: set[str] = set()  # reasons for failed loads that were logged
        self._ticking: tuple[Service, ...] = ()  # each service once
        self._due: dict[Service, None] = {}  # the services to tick next, in this order
        self._clients = Clients(most_clients)
        self._is_stopping = False
        self._look_at = self._warn_at = -math.inf
        self._ended, self._give_back_at = 0, list[float]()  # closed connections; times to free
        self._listening = runtime.event()
        self._listen_error: Exception | None = None
        self.bad_messages = 0  # messages that were not valid requests
        self.bytes_sent = 0  # payload of answers, except those to processes that are no nodes
        self._received: ReceivedMessage | None = None  # the message that is being answered

    def register(self, service: Service) -> None:
        """Register a service. Any thread may call this at any time."""
        # A new dictionary, because the thread may be iterating over the current one.
        self._services = {**self._services, **dict.fromkeys(service.handles, service)}
        self._ticking = tuple(dict.fromkeys(self._services.values()))

    def serve_later(self, messages: str, load: Callable[[], object]) -> None:
        """Call `load`, which registers a service, when a message of the module `messages` arrives.

        If a service for the module is already registered, it stays, and `load` is not called.
        """
        if all(kind.__module__ != messages for kind in self._services):
            self._loads = {**self._loads, messages: load}

    def open(self) -> None:
        """Start, and wait until the socket listens. Raises `AddressError` if it cannot listen."""
        self._thread.start()
        self._listening.wait()
        if self._listen_error is not None:
            self.stop(timeout_s=1.0)
            raise self._listen_error

    def request_stop(self) -> None:
        self._is_stopping = True
        self.wake()

    @property
    def source(self) -> str:
        """The address from which the current request was sent. See `ReceivedMessage`."""
        if self.endpoint.startswith("ipc://"):
            return "localhost"  # because some systems do not report an address
        return "" if self._received is None else self._received.source

    @contextmanager
    def unthrottled(self) -> Iterator[None]:
        """Lift the time budget for requests while the trainer waits. Any thread may use this."""
        is_paused = self.admission.paused_s()
        is_first = self.admission.begin_unthrottled()
        try:
            if is_paused:
                self.wake()
            yield
        finally:
            if is_first:
                self.admission.end_unthrottled()

    def _run(self) -> None:
        try:
            with (
                claimed(self._endpoint),
                self._listener() as listener,
                closing(self._authenticator()) as authenticator,
            ):
                with self._router(listener) as router:
                    self.endpoint = bound_endpoint(router)
                    self._listening.set()
                    self._serve(router, authenticator)
                while not self._is_stopping:
                    self._serve_anew(listener, authenticator)
        except Exception as error:
            if self._listening.is_set():
                raise
            self._listen_error = error  # `open` raises it in the thread that waits
            self._listening.set()

    def _authenticator(self) -> Authenticator:
        return Authenticator(self._zmq_context, self.admission.authorizer, self._keys_changed)

    def _listener(self) -> AbstractContextManager[socket.socket | None]:
        return listening_socket(self._endpoint) if self._runtime is SYSTEM else nullcontext()

    @contextmanager
    def _router(self, listener: socket.socket | None) -> Iterator[Socket]:
        handshake_ms = int(self.admission.limits.handshake_timeout_s * 1000)
        authorizer = self.admission.authorizer
        with serving_socket(
            self._zmq_context, self._endpoint, authorizer, handshake_ms, listener
        ) as router:
            try:
                yield router
            finally:
                # It closes later, and ZeroMQ's own thread would wait for a reader of the monitor.
                router.disable_monitor()

    def _serve_anew(self, listener: socket.socket | None, authenticator: Authenticator) -> None:
        """Serve with a new socket, to end a message of endlessly many frames and free its memory.

        Peers reconnect, and repeat lost requests.
        """
        try:
            authenticator.renew()
            with self._router(listener) as router:
                self.admission.is_clogged = False
                self._ended = -1  # so that connections that are not counted yet are included
                self._serve(router, authenticator)
        except (AddressError, OSError, zmq.ZMQError) as error:
            log.info("%s: cannot listen again yet: %s", self.endpoint, error)
            self._runtime.sleep(LISTEN_AGAIN_S)

    def _serve(self, router: Socket, authenticator: Authenticator) -> None:
        wakes, poller = self._runtime.poller(), self._runtime.poller()
        asking = frozenset(authenticator.sockets)
        for each in (self.waker.receiver, *authenticator.sockets):
            wakes.register(each, zmq.POLLIN)
            poller.register(each, zmq.POLLIN)
        poller.register(router, zmq.POLLIN)
        now = self._runtime.now()
        while not self.admission.is_clogged:
            idle_s = BUSY_S if self._due else max(0.0, self._look_at - now)
            paused_s = self.admission.paused_s()
            ready = dict(
                wakes.poll(int(min(idle_s, paused_s) * 1000) + 1)
                if paused_s
                else poller.poll(int(idle_s * 1000) + 1)
            )
            if self._is_stopping:
                self._end_services(router)
                return
            try:
                if self.waker.receiver in ready:
                    self._due = dict.fromkeys(self._ticking)
                    self.make_calls()
                if router in ready:
                    self._answer(router)
                # After the answers, because a connection may have closed after its message.
                if not asking.isdisjoint(ready):
                    authenticator.process_events()
                now = self._runtime.now()
                if now >= self._look_at:
                    self._look(now, authenticator)
                self._tick(now)
            except Exception:
                self.bad_messages += 1
                log.exception(
                    "this node could not answer a message due to an unexpected error. The node "
                    "continues [DPWA-W017]"
                )

    def _end_services(self, router: Socket) -> None:
        for service in self._ticking:
            try:
                if service.ended():
                    router.linger = LAST_WORDS_MS
            except Exception:
                log.exception(
                    "an unexpected error occurred in %s while this node ended [DPWA-W015]",
                    type(service).__name__,
                )

    def _look(self, now: float, authenticator: Authenticator) -> None:
        """Run the periodic checks that no socket event triggers."""
        self._look_at = now + IDLE_S
        self._due = dict.fromkeys(self._ticking)
        authenticator.tick(now)
        if self._runtime is SYSTEM:
            self._look_for_descriptors(now)
            self._give_back_memory(now)

    def _give_back_memory(self, now: float) -> None:
        """Give back memory after a connection ends, in case the peer sent millions of frames."""
        if self._ended != self.admission.authorizer.ended:
            self._ended = self.admission.authorizer.ended
            soon, *later = (now + seconds for seconds in GIVE_BACK_AFTER_S)
            self._give_back_at = [min([soon, *self._give_back_at]), *later]
        if self._give_back_at and now >= self._give_back_at[0]:
            del self._give_back_at[0]
            give_back_memory()

    def _look_for_descriptors(self, now: float) -> None:
        """Warn repeatedly while no file descriptors are left, so that no peer can connect."""
        if now >= self._warn_at and not can_open():
            self._warn_at = now + SHORT_AGAIN_S
            log.warning(
                "%s: no peer can connect, because this process has no file descriptors left "
                "(see `ulimit -n`) [DPWA-W075]",
                self._name,
            )

    def _tick(self, now: float) -> None:
        due, self._due = self._due, {}
        for service in due:
            try:
                if service.tick(now):
                    self._due[service] = None
            except Exception:
                log.exception(
                    "a background task of this node failed. The node continues [DPWA-W017]"
                )

    def _answer(self, router: Socket) -> None:
        """Answer a few waiting messages at a time, so that other work can run in between."""
        for _ in range(MESSAGES_PER_TURN):
            received = self.admission.take_message(router)
            if received is None:
                return
            try:
                if len(received.frames) >= 2 and self.admission.is_heard(received):
                    self._answer_one(router, received)
            finally:
                self.admission.served(received)

    def _answer_one(self, router: Socket, received: ReceivedMessage) -> None:
        self._received, sender = received, bytes(received.frames[0])
        try:
            message, payload = decode(received.frames[1:])
            if self.admission.is_forged(received, message):
                return
            self.admission.authorizer.mark_heard(received.descriptor)
            one_too_many = self._clients.note_sender(sender)
            if one_too_many is not None:
                self._reply_to(router, one_too_many)(GoAway(request=0))
            service = self._services.get(type(message)) or self._loaded(type(message))
            if service is None:
                raise ProtocolError(f"a message of type {message.type!r} is not a request")
            self._due[service] = None
            service.receive(sender, message, payload, self._reply_to(router, sender))
        except ImportError as error:
            self._say_unloaded(str(error))
            self._reply_to(router, sender)(Refused(request=0, reason="a module cannot be loaded"))
        except VersionError:
            # The version in the header of any answer tells the peer why.
            self.bad_messages += 1
            self._reply_to(router, sender)(Refused(request=0, reason="protocol version"))
        except (ProtocolError, ClosedError) as error:
            self.bad_messages += 1
            log.debug("ignored a message: %s", error)

    def _loaded(self, kind: type[Message]) -> Service | None:
        """Load the service of a type of message, if there is one."""
        load = self._loads.get(kind.__module__)
        if load is not None:
            load()
            self._loads.pop(kind.__module__, None)
        return self._services.get(kind)

    def _say_unloaded(self, why: str) -> None:
        self.bad_messages += 1
        if why not in self._unloaded:
            self._unloaded.add(why)
            text = "%s: refused a message, because a module cannot be loaded: %s [DPWA-W103]"
            log.error(text, self._name, why)

    def _reply_to(self, router: Socket, to: bytes) -> Reply:
        def reply(
            message: Message, payload: Frame | None = None, *, is_lent: bool = False
        ) -> Receipt | None:
            if router.closed:  # it was replaced by a new socket
                return None
            frames: list[Frame] = [to, encode(message)]
            if payload is not None:
                frames.append(payload)
            receipt = send_frames(router, frames, is_lent=is_lent)
            if not message.is_for_onlookers and receipt is not None and payload is not None:
                self.bytes_sent += len(payload)
            return receipt

        return reply
