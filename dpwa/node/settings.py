"""Compare the settings that must be equal on all nodes with those of each peer."""

from __future__ import annotations

import hashlib
import logging

from dpwa.config import Config
from dpwa.config.comparison import compared, differences
from dpwa.data.layout import FINGERPRINT_BYTES
from dpwa.errors import ProtocolError
from dpwa.node.serving.service import Reply, Service
from dpwa.types import Frame, Unlike
from dpwa.wire.messages import AskSettings, OtherSettings, pack, printable, unpack

log = logging.getLogger("dpwa.peers")


class Settings:
    """Compares the settings of a node with those of its peers, at every connection."""

    def __init__(self, name: str, config: Config) -> None:
        self._name = name
        self.own = compared(config)
        self.packed = pack(self.own)
        self.digest = hashlib.blake2b(self.packed, digest_size=FINGERPRINT_BYTES).digest()
        self._warned_of = set[tuple[str, str]]()

    def question(self) -> AskSettings:
        """Return a question for a peer's settings. The peer answers only if its settings differ."""
        return AskSettings(request=0, digest=self.digest)

    def compare(self, peer: str, payload: Frame) -> str:
        """Compare a peer's settings. Return why the peer is not merged, or "" if it may be."""
        told = unpack(payload)
        if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
            raise ProtocolError("the message does not contain the settings of a node")
        theirs = {name: printable(text) for name, text in told.items()}
        found = differences(self.own, theirs)
        warns = "; ".join(text for text, what in found.items() if what is not Unlike.REFUSES)
        if warns and (peer, warns) not in self._warned_of:
            self._warned_of.add((peer, warns))
            log.warning(
                "%s: the settings of peer %s differ from the settings of this node: %s. Set the "
                "same values on all nodes [DPWA-W087]",
                self._name,
                peer,
                warns,
            )
        return "; ".join(text for text, what in found.items() if what is Unlike.REFUSES)


class SettingsService(Service):
    """Sends this node's settings to a peer whose settings differ."""

    handles = (AskSettings,)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def handle(self, sender: bytes, message: AskSettings, reply: Reply) -> None:  # noqa: ARG002
        if message.digest != self._settings.digest:
            reply(OtherSettings(request=message.request), self._settings.packed)
