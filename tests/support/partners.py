"""A partner in transactions that does what a test wants, step by step, over real sockets."""

import time
from contextlib import contextmanager

import numpy as np
import zmq

from dpwa.data.checksum import checksum
from dpwa.wire.messages import Chunk, Fetch, SnapshotHeader, decode, encode
from dpwa.wire.transaction_messages import (
    Agreed,
    DecisionAck,
    Prepared,
    Propose,
    TransactionDecision,
)
from support.imposters import identity_for
from support.inside import fingerprint_of, threads_of
from support.nodes import again_and_again, eventually
from support.requests import fetch_of, header_of
from support.times import HANGS_AFTER_S


class Partner:
    """Plays the node `name`: listens on its port (`router`), and talks to one
    real node (`dealer`).
    """

    def __init__(self, router, dealer, member, name="w2"):
        self._router, self._dealer = router, dealer
        self._identity = None
        self.member, self.name = member, name
        self.version = 1

    # What the real node sends as the one who asks

    def heard(self, kind):
        """Return the next message of this kind; leave others."""
        message = self.hears(kind, HANGS_AFTER_S)
        assert message is not None, f"no {kind.__name__}"
        return message

    def hears(self, kind, for_s):
        """Return the next message of this kind; `None` if none comes in this time."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            if self._router.poll(min(20, for_s * 1000)):
                self._identity, *frames = self._router.recv_multipart()
                message, _ = decode(frames)
                if isinstance(message, kind):
                    return message
        return None

    def hears_no(self, kind, for_s):
        assert self.hears(kind, for_s) is None

    def introduce(self):
        """Say who is there; the first thing that is asked on a connection."""
        assert self._router.poll(HANGS_AFTER_S * 1000)
        self._identity, *frames = self._router.recv_multipart()
        self._router.send_multipart([self._identity, identity_for(frames)])

    def hang_up(self):
        """Listen no more, so that the real node loses its connection."""
        self._router.close(0)

    def answer(self, message, *payload):
        self._router.send_multipart([self._identity, encode(message), *payload])

    def agree(self, proposal, **fields):
        said = {"version": self.version, "clock": 1.0, "units": 0, "news": (), **fields}
        self.answer(
            Agreed(**{"request": proposal.request, "transaction": proposal.transaction, **said})
        )

    def announce(self, fetch, nbytes, version=None, **fields):
        """Begin to serve a snapshot."""
        version = version or self.version
        self.answer(header_of(request=fetch.request, version=version, nbytes=nbytes, **fields))

    def announce_only(self):
        """Begin to serve a snapshot that never comes."""
        self.announce(self.heard(Fetch), self.member.x.numel() * np.float64().nbytes)

    def serve(self, fetch, value=0.0, version=None, **fields):
        data = np.full(self.member.x.numel(), float(value)).tobytes()
        self.announce(fetch, len(data), version, **fields)
        self.answer(Chunk(request=fetch.request, index=0, checksum=checksum(data)), data)

    def note(self, decided):
        self.answer(DecisionAck(request=decided.request, transaction=decided.transaction))

    # What the real node answers

    def say(self, message):
        self._dealer.send(encode(message))

    def ask(self, message, timeout_s=HANGS_AFTER_S):
        """Send a request; return the answer, the values of a snapshot, or `None` for silence."""
        self.say(message)
        return self.answered(timeout_s)

    def answered(self, timeout_s=HANGS_AFTER_S):
        if not self._dealer.poll(timeout_s * 1000):
            return None
        message, payload = decode(self._dealer.recv_multipart())
        return (message, payload) if payload else message

    def proposal(self, transaction=b"pair-one", **fields):
        config = self.member.node.config
        terms = "share" if config.algorithm == "push_sum" else "exchange"
        said = {
            "request": 1,
            "transaction": transaction,
            "name": self.name,
            "terms": terms,
            "fingerprint": fingerprint_of(self.member),
            "version": self.version,
            "news": (),
            "budget_ms": config.timeout_ms,
        }
        return Propose(**{**said, **fields})

    def fetched(self, version):
        fingerprint = fingerprint_of(self.member)
        header = self.ask(fetch_of(fingerprint, version=version))
        assert isinstance(header, SnapshotHeader), header
        _, data = self.answered()
        return header, np.frombuffer(data)

    def prepare(self, transaction):
        self.say(Prepared(request=0, transaction=transaction, name=self.name, is_there=True))

    def decide(self, transaction, *, commit):
        answer = self.ask(TransactionDecision(request=7, transaction=transaction, commit=commit))
        return isinstance(answer, DecisionAck) and answer.transaction == transaction

    def exchange(self, transaction=b"pair-one", value=0.0):
        """Propose an exchange, and let the real node prepare it; return what it agreed to."""
        agreed = self.ask(self.proposal(transaction))
        assert isinstance(agreed, Agreed), agreed
        self.serve(self.heard(Fetch), value)
        assert self.heard(Prepared).transaction == transaction
        return agreed


@contextmanager
def partner_of(member, name="w2"):
    """A partner that plays the node `name` of the configuration of a member, and is connected."""
    config = member.node.config
    port, other = config.node(name).port, config.node(member.name).port
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(f"tcp://127.0.0.1:{port}")
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(f"tcp://127.0.0.1:{other}")
            partner = Partner(router, dealer, member, name)
            partner.introduce()
            eventually(lambda: threads_of(member.node).tx.reaches(name))
            yield partner


@contextmanager
def serving(*partners, value=0.0, delay_s=0.0):
    """Let partners answer every fetch with parameters of this value, and this much later.

    Yields the fetches that were answered.
    """
    served = []

    def serve():
        for partner in partners:
            fetch = partner.hears(Fetch, 0.005)
            if fetch is not None:
                time.sleep(delay_s)
                partner.version += 1
                partner.serve(fetch, value)
                served.append(fetch)

    with again_and_again(serve):
        yield served
