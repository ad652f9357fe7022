"""Collectives between threads of one process: what nodes agree on, without nodes.

Deaths are scripted: a thread dies, or is left behind, in place of making its n-th call. Whoever has
been lost, and calls again, is let in at the next collective. Waits that can never end fail the
test, saying who is in which call.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from dpwa.data.payload import Payload
from dpwa.data.reduction import reduce_into
from dpwa.errors import LeftBehindError, MismatchError, PeerLost

TIMEOUT_S = 10.0


class Killed(BaseException):  # no `except Exception` survives it
    """The thread of a node ends here, as if its process had been killed."""


class DeadlockError(AssertionError):
    """Somebody waits for what nobody is going to call."""


@dataclass(eq=False)
class Call:
    form: tuple  # what all who contribute must agree on: the kind, then the rest
    value: Any = None  # a buffer of bytes, or plain data
    is_over: bool = False
    result: Any = None
    error: Exception | None = None

    @property
    def is_join(self):
        return self.form[0] == "join"

    def end(self, result=None, error=None):
        self.is_over, self.result, self.error = True, result, error


@dataclass
class Sequence:
    members: list[str]  # in order of rank
    calls: dict[str, Call] = field(default_factory=dict)  # who of them has called the present one
    lost: set[str] = field(default_factory=set)  # members that will not call it
    # calls of those who are let in with the next one
    join_requests: dict[str, Call] = field(default_factory=dict)
    # kinds of all that have been performed, with those who contributed; and who was let in
    log: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


class Threads:
    """Nodes that are threads, named in order of rank.

    `dies` and `is_left` say at which of its calls, from 1, a node dies or is left behind.
    """

    def __init__(self, names, dies=None, is_left=None, timeout_s=TIMEOUT_S):
        self.names = list(names)
        self.dies, self.is_left = dict(dies or {}), dict(is_left or {})
        self.timeout_s = timeout_s
        self._changed = threading.Condition()
        self._sequences: dict[str, Sequence] = {}
        self._counts = dict.fromkeys(self.names, 0)
        self._threads: list[threading.Thread] = []
        self.outcomes: dict[str, Any] = {}

    def start(self, name, task):
        """Let a node run `task(node)` on a thread; also one that has died before."""

        def run():
            try:
                outcome = task(ThreadNode(self, name))
            except (Exception, Killed) as error:  # noqa: BLE001
                outcome = error
            with self._changed:
                self.outcomes[name] = outcome
                self._lose(name)  # a process that has ended is gone, too

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self):
        """Wait for all; return what each has returned or raised, by name."""
        for thread in self._threads:
            thread.join(2 * self.timeout_s)
            assert not thread.is_alive()
        for outcome in self.outcomes.values():
            if isinstance(outcome, DeadlockError):
                raise outcome
        return self.outcomes

    def run(self, task, names=None):
        """Let all nodes, or some, run `task(node)`; return what each has returned or raised."""
        for name in names or self.names:
            self.start(name, task)
        return self.end()

    def wait_until(self, check):
        """Wait until something holds that another node changes."""
        with self._changed:
            assert self._changed.wait_for(check, self.timeout_s)

    def is_waiting(self, name, tag):
        """Whether a node is in a collective, or waits to be let in."""
        sequence = self._sequences.get(tag)
        return sequence is not None and name in {**sequence.calls, **sequence.join_requests}

    def sequence(self, tag):
        return self._sequences.setdefault(tag, Sequence(list(self.names)))

    def perform(self, name, tag, call):
        with self._changed:
            sequence = self.sequence(tag)
            self._count(name, sequence)
            is_member = name in sequence.members and name not in sequence.lost
            (sequence.calls if is_member else sequence.join_requests)[name] = call
            self._advance(sequence)
            if not self._changed.wait_for(lambda: call.is_over, self.timeout_s):
                raise DeadlockError(self._described(name, tag, sequence))
        if call.error is not None:
            raise call.error
        return call.result

    def _count(self, name, sequence):
        self._counts[name] += 1
        if self.dies.get(name) == self._counts[name]:
            raise Killed(name)
        if self.is_left.get(name) == self._counts[name]:
            sequence.lost.add(name)
            self._advance(sequence)
            raise LeftBehindError([name], f"the others have gone on without {name}")

    def _lose(self, name):
        for sequence in self._sequences.values():
            sequence.lost |= {name} & set(sequence.members)
            self._advance(sequence)
        self._changed.notify_all()

    def _advance(self, sequence):
        """End all collectives that everybody has called who lives."""
        while self._is_complete(sequence):
            if sequence.lost:
                lost = [name for name in sequence.members if name in sequence.lost]
                for call in sequence.calls.values():
                    call.end(error=PeerLost(lost, f"lost {lost}"))
                sequence.members = [n for n in sequence.members if n not in sequence.lost]
                sequence.lost.clear()
            elif sequence.members:
                _perform(sequence)
            sequence.calls = {n: call for n, call in sequence.calls.items() if not call.is_over}
            self._let_in(sequence)
        self._changed.notify_all()

    def _is_complete(self, sequence):
        if not sequence.members:
            return bool(sequence.join_requests)  # the first of a new group
        return set(sequence.members) <= set(sequence.calls) | sequence.lost

    def _let_in(self, sequence):
        sequence.calls.update(sequence.join_requests)
        together = {*sequence.members, *sequence.join_requests}
        sequence.members = [name for name in self.names if name in together]
        if sequence.join_requests:
            sequence.log.append(("let in", tuple(sequence.join_requests)))
        sequence.join_requests.clear()

    def _described(self, name, tag, sequence):
        within = {member: call.form[0] for member, call in sequence.calls.items()}
        missing = [member for member in sequence.members if member not in within]
        return f"{name} waits in {tag!r}; in a call {within}, missing {missing}"


class ThreadNode:
    def __init__(self, threads, name):
        self._threads = threads
        self.name = name
        self._members = list(threads.names)

    @property
    def rank(self):
        return self._threads.names.index(self.name)

    @property
    def world_size(self):
        return len(self._members)

    def all_reduce(self, value, op="sum", timeout_s=None, tag=""):
        buffer, payload = _buffer(value)
        form = ("all_reduce", op, payload.layout.fingerprint)
        reduced, contributors = self._perform(tag, Call(form, (buffer, payload.layout)))
        return _assigned(payload, reduced), contributors

    def broadcast(self, value, root, timeout_s=None, tag=""):
        buffer, payload = _buffer(value)
        form = ("broadcast", root, payload.layout.fingerprint)
        return _assigned(payload, self._perform(tag, Call(form, buffer)))

    def all_gather(self, value, timeout_s=None, tag=""):
        packed = self._perform(tag, Call(("all_gather",), msgpack.packb(value)))
        return {name: msgpack.unpackb(data) for name, data in packed.items()}

    def join(self, timeout_s=None, tag=""):
        self._perform(tag, Call(("join",)))

    def _perform(self, tag, call):
        try:
            return self._threads.perform(self.name, tag, call)
        finally:
            self._members = list(self._threads.sequence(tag).members)


def _buffer(value):
    payload = Payload(value)
    buffer = np.empty(payload.nbytes, np.uint8)
    payload.copy_into(0, payload.nbytes, buffer)
    return buffer, payload


def _assigned(payload, buffer):
    payload.assign(0, payload.nbytes, buffer)
    return payload.result()


def _perform(sequence):
    """Do a collective that all members are in, if only to wait for the others."""
    at_work = {n: sequence.calls[n] for n in sequence.members if not sequence.calls[n].is_join}
    if not at_work:
        sequence.log.append(("join", ()))
        for call in sequence.calls.values():
            call.end()
        return
    forms = {call.form for call in at_work.values()}
    if len(forms) > 1:
        said = {name: call.form for name, call in at_work.items()}
        for call in sequence.calls.values():
            call.end(error=MismatchError(f"{said}"))
        return
    kind, *rest = forms.pop()
    sequence.log.append((kind, tuple(at_work)))
    result = _DOES[kind](at_work, rest[0] if rest else None)
    for call in at_work.values():
        call.end(result)


def _all_reduced(calls, op):
    buffers, layouts = zip(*(call.value for call in calls.values()), strict=True)
    target, nbytes = buffers[0].copy(), buffers[0].nbytes
    for piece in layouts[0].pieces(nbytes, nbytes):
        area = slice(piece.start, piece.stop)
        others = [buffer[area] for buffer in buffers[1:]]
        by = len(buffers) if op == "mean" else 1
        reduce_into(target[area], others, piece.dtype, op, by=by)
    return target, len(buffers)


def _broadcast(calls, root):
    return calls[root].value.copy()


def _gathered(calls, _):
    return {name: call.value for name, call in calls.items()}


_DOES = {"all_reduce": _all_reduced, "broadcast": _broadcast, "all_gather": _gathered}
