"""What nodes tell each other of how their training ends: both sides of the `finishing` message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dpwa.node.peers import PeerTable
from dpwa.node.serving.service import Listener, Reply, Service
from dpwa.policy.finishing import Ending, Heard
from dpwa.runtime import Runtime
from dpwa.types import Frame
from dpwa.wire.messages import Finishing, Status, printable, unpack

MOST_ROUNDS = 2**31  # nobody comes that far; whoever says so must not take this node along


class Endings:
    """What this node and its peers have said of how they end; any thread may call any method.

    Anybody may speak in the name of a peer: what that can change is when this node ends, with whom
    it is in a round, and whether what that peer has published is merged again.

    Args:
        name: of this node.
        peer_table: its peers.
        updates: returns how many training steps this node has taken.
        version: returns the version of the snapshot that it has published last.
        runtime: of the node.

    Attributes:
        rest: digests of what this node's state has beside what is averaged, by name; empty: it has
            nothing more, or has not told.
        rests: the same of peers that were asked, by their names.
    """

    def __init__(
        self,
        name: str,
        peer_table: PeerTable,
        updates: Callable[[], int],
        version: Callable[[], int],
        runtime: Runtime,
    ) -> None:
        self._name = name
        self._peer_table = peer_table
        self._updates = updates
        self._version = version
        self._clock = runtime
        self._changed = runtime.condition()
        self._own = Ending()
        self._heard: dict[str, Heard] = {}
        self.rest: Mapping[str, str] = {}
        self.rests: dict[str, Mapping[str, str]] = {}

    @property
    def own(self) -> Ending:
        """What this node says; it trains again if it has taken a step since."""
        own, updates = self._own, self._updates()
        return own if own.updates == updates else Ending(updates)

    @own.setter
    def own(self, ending: Ending) -> None:
        self._own = replace(ending, updates=self._updates())

    def message(self, request: int = 0) -> Finishing:
        """Return what to tell."""
        version = self._version()  # first: it must not be of a training step that follows the end
        return Finishing(request=request, name=self._name, version=version, **vars(self.own))

    def hear(self, peer: str, message: Finishing) -> None:
        """Take in what a peer says."""
        if peer not in self._peer_table.names or message.round_number > MOST_ROUNDS:
            return
        said = message.model_dump(exclude={"type", "request", "name", "version"})
        with self._changed:
            heard = Heard.after(self._heard.get(peer), Ending(**said), self._clock.now())
            self._heard[peer] = heard
            if heard.ending.is_finishing:
                self._peer_table.merged.ends(peer, message.version)
            else:
                self._peer_table.merged.trains(peer)
            self._changed.notify_all()

    def hear_rest(self, peer: str, report: object) -> None:
        """Take in what a peer's status tells of the rest of its state."""
        match report:
            case {"ending": {"rest": dict(rest)}}:
                told = {str(name): str(digest) for name, digest in rest.items()}
                with self._changed:
                    self.rests[peer] = told
                    self._changed.notify_all()

    def differing(self, peer: str) -> tuple[str, ...]:
        """Return the names in the rest of a peer's state, and of this node's, that differ."""
        own, theirs = self.rest, self.rests.get(peer)
        if not theirs:
            return ()
        names = sorted({*own, *theirs})
        return tuple(printable(name) for name in names if own.get(name) != theirs.get(name))

    def of(self, peer: str) -> Heard | None:
        """Return what a peer has said last."""
        return self._heard.get(peer)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so by what peers say; return whether it is."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def said_by(self, peers: Sequence[str]) -> list[Heard | None]:
        """Return what each of these peers has said last."""
        return [self._heard.get(peer) for peer in peers]

    def wait_for_more(
        self, peers: Sequence[str], said: list[Heard | None], timeout_s: float
    ) -> None:
        """Wait until one of these peers says something, after what it has `said`."""
        self.wait_for(lambda: self.said_by(peers) != said, timeout_s)


class FinishService(Service):
    """Answers peers that tell how they end."""

    handles = (Finishing,)

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    def handle(self, sender: bytes, message: Finishing, reply: Reply) -> None:  # noqa: ARG002
        """Take it in, and tell the same of this node."""
        self._endings.hear(message.name, message)
        reply(self._endings.message(message.request))


class FinishListener(Listener):
    """Takes in the answers of peers; tells who comes later that this node trains no more.

    Args:
        endings: of the node and its peers.
        tell: sends a message to a peer.
    """

    handles = (Finishing, Status)

    def __init__(self, endings: Endings, tell: Callable[[str, Finishing], None]) -> None:
        self._endings = endings
        self._tell = tell

    def link_changed(self, peer: str, *, is_up: bool) -> None:
        """Tell a peer that is met, or met again."""
        if is_up and self._endings.own.is_finishing:
            self._tell(peer, self._endings.message())

    def receive(self, peer: str, message: Finishing | Status, payload: Frame) -> None:
        """Take in how a peer ends, and with what."""
        if isinstance(message, Status):
            self._endings.hear_rest(peer, unpack(payload))
        else:
            self._endings.hear(peer, message)
