"""A relay between a node and its peer that records what the peer sends, and can change it."""

import contextlib
import socket
import threading

GREETING_BYTES = 64


class Recorder:
    """Hands on every connection to a port, and keeps what came of each, by connection.

    Attributes:
        sessions: the bytes that the connecting side has sent, one `bytearray` for each connection.
        swaps: how many frames that come are to change places with the next one.
        repeats: how many frames that come are to be handed on twice.
    """

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sessions = []
        self.swaps = self.repeats = 0
        self._newest = None
        self._open = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                self._newest = far
                self.sessions.append(bytearray())
                for args in ((near, far, self.sessions[-1]), (far, near, None)):
                    thread = threading.Thread(target=self._relay, args=args)
                    self._threads.append(thread)
                    thread.start()

    def _relay(self, source, target, session):
        frames = Frames()
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if session is None:
                    target.sendall(data)
                    continue
                session += data
                for frame in frames.of(data):
                    self._hand_on(target, frame, frames)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hand_on(self, target, frame, frames):
        if frames.held:
            target.sendall(frame + frames.held)
            frames.held = b""
        elif self.swaps > 0:
            self.swaps -= 1
            frames.held = frame
        elif self.repeats > 0:
            self.repeats -= 1
            target.sendall(frame + frame)
        else:
            target.sendall(frame)

    def inject(self, data):
        """Send bytes to the target over the newest connection."""
        self._newest.sendall(data)

    def cut(self):
        """End all connections."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


class Frames:
    """Cuts a stream of ZMTP 3 into its greeting and its frames."""

    def __init__(self):
        self._rest = b""
        self._greeting_left = GREETING_BYTES
        self.held = b""

    def of(self, data):
        """Yield each piece that is complete."""
        self._rest += data
        while nbytes := self._first():
            yield self._rest[:nbytes]
            self._rest = self._rest[nbytes:]

    def _first(self):
        rest = self._rest
        if self._greeting_left and rest:  # which comes in pieces: each side waits for the other's
            nbytes = min(len(rest), self._greeting_left)
            self._greeting_left -= nbytes
            return nbytes
        size_bytes = 8 if rest and rest[0] & 2 else 1
        if len(rest) < 1 + size_bytes:
            return 0
        nbytes = 1 + size_bytes + int.from_bytes(rest[1 : 1 + size_bytes], "big")
        return nbytes if len(rest) >= nbytes else 0


def play(port, data, patience_s=2.0):
    """Send recorded bytes at once over a connection of their own; wait until nothing comes back."""
    with _connection(port, patience_s) as connection:
        connection.sendall(data)
        _read_on(connection)


def play_politely(port, data, patience_s=2.0):
    """Send recorded bytes as `play` does, but wait for an answer to each step of the handshake."""
    with _connection(port, patience_s) as connection:
        pieces, got = Frames().of(data), 0
        for least in (GREETING_BYTES, GREETING_BYTES + 1):  # with which READY or HELLO is answered
            connection.sendall(next(pieces))
            while got < least:
                answer = connection.recv(65536)
                if not answer:
                    return
                got += len(answer)
        for piece in pieces:
            connection.sendall(piece)
        _read_on(connection)


@contextlib.contextmanager
def _connection(port, patience_s):
    connection = socket.create_connection(("127.0.0.1", port), timeout=patience_s)
    with connection, contextlib.suppress(ConnectionError, TimeoutError):
        yield connection


def _read_on(connection):
    while connection.recv(65536):
        pass
