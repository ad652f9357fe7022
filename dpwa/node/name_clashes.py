"""Refuse nodes with a different name than expected, or with a name that a living node has."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dpwa.node.context import NodeContext
from dpwa.node.serving.service import Reply, Service
from dpwa.transport.sockets import HEARTBEAT_TIMEOUT_MS
from dpwa.wire.limits import MAX_MEMBERS
from dpwa.wire.messages import AskIdentity, Identity

log = logging.getLogger("dpwa.peers")

# A restarted node may ask before this node notices that the node's earlier process has ended.
CERTAIN_AFTER_S = HEARTBEAT_TIMEOUT_MS / 1000 + 1.0
OVER_AFTER_S = 5.0  # a clash is over after so long without another attempt
MAX_ASKED = 2 * MAX_MEMBERS


def clash_of(said: Identity, peer: str, endpoint: str, own: tuple[str, bytes]) -> str:
    """Return why a process is not accepted as the peer, or "" if the process is accepted.

    `own` is the name and the incarnation of this node.
    """
    if said.incarnation == own[1]:
        return f"this node itself answers at {endpoint}"
    if said.name != peer:
        return f"{said.name} answers at {endpoint}"
    return f"the name {own[0]} is taken by the node at {said.taken_by}" if said.taken_by else ""


@dataclass
class _Clash:
    began: float
    seen: float
    is_told: bool = False


class IdentityService(Service):
    """Answers with this node's name. Refuses a node if a different living node has its name."""

    handles = (AskIdentity,)

    def __init__(self, context: NodeContext) -> None:
        self._name, self._clock = context.name, context.runtime
        self._peer_table = context.peer_table
        self._is_open = context.config.is_open
        self.is_over = False  # this node leaves, and peers must not connect to it again
        # nodes that ask while it is unknown which node has the name
        self._asked: dict[tuple[str, bytes], tuple[AskIdentity, Reply]] = {}
        self._clashes: dict[str, _Clash] = {}  # by the sentence that describes them

    def handle(self, sender: bytes, message: AskIdentity, reply: Reply) -> None:  # noqa: ARG002
        if self.is_over:
            return
        if message.expects != self._name:
            text = f"{message.name} mistakes this node for {message.expects}. Compare the addresses"
            self._note(message.name, f"{text} in both configurations", "[DPWA-W090]", 0.0)
        self._answer(message, reply)
        if len(self._asked) < MAX_ASKED and self._peer_table.knows(message.name):
            self._asked[message.name, message.incarnation] = message, reply

    def tick(self, now: float) -> bool:  # noqa: ARG002
        """Refuse a node that asked earlier, if another node with its name has connected since."""
        for key, (message, reply) in list(self._asked.items()):
            if self._peer_table.connected_process(message.name)[0]:
                del self._asked[key]
                if self._taken_by(message):
                    self._answer(message, reply)
        return False

    def report(self) -> tuple[str, ...]:
        """Describe the names that clash now, as sentences."""
        now = self._clock.now()
        clashes = tuple(self._clashes.items())
        return tuple(text for text, clash in clashes if now - clash.seen < OVER_AFTER_S)

    def _answer(self, message: AskIdentity, reply: Reply) -> None:
        taken_by, is_certain = self._taken_by(message), False
        if taken_by:
            text = f"a second node with the name {message.name} is refused. It claims the address "
            text += f"{message.endpoint}, but the node at {taken_by} has that name and is alive"
            is_certain = self._note(message.name, text, "[DPWA-W091]", CERTAIN_AFTER_S)
        reply(
            Identity(
                request=message.request,
                name=self._name,
                incarnation=self._peer_table.own_process[0],
                taken_by=taken_by,
                is_certain=is_certain,
            )
        )

    def _taken_by(self, message: AskIdentity) -> str:
        """Return the endpoint of another node that has the name of the asking node, or "".

        With `join`, members compare incarnations to agree on the node that keeps a name.
        """
        if self._is_open:
            return ""
        incarnation, endpoint = self._peer_table.connected_process(message.name)
        return endpoint if incarnation not in (b"", message.incarnation) else ""

    def _note(self, name: str, sentence: str, code: str, certain_after_s: float) -> bool:
        """Warn of a clash once the clash is certain, and return whether the clash is certain."""
        now, clash = self._clock.now(), self._clashes.get(sentence)
        if name != self._name and not self._peer_table.knows(name):
            return False
        if len(self._clashes) >= MAX_ASKED:  # so that untrusted peers cannot use up memory
            self._clashes.clear()
        if clash is None or now - clash.seen >= OVER_AFTER_S:
            clash = self._clashes[sentence] = _Clash(now, now)
        clash.seen = now
        is_certain = now - clash.began >= certain_after_s
        if is_certain and not clash.is_told:
            clash.is_told = True
            log.warning("%s: %s %s", self._name, sentence, code)
        return is_certain
