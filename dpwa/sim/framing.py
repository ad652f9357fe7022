"""What a message takes on the wire: its frames as ZeroMQ sends them, in the packets of TCP."""

from __future__ import annotations

from collections.abc import Sequence

SEGMENT_BYTES = 1448  # of payload in one packet
PACKET_BYTES = 66  # Ethernet, IP and TCP
FRAME_BYTES = 9  # ZMTP, of a long frame
SHORT_FRAME_BYTES = 2
SHORT_BYTES = 256


def wire_bytes(sizes: Sequence[int]) -> int:
    """Return what a message of frames of these sizes takes on the wire."""
    framed = sum(n + (SHORT_FRAME_BYTES if n < SHORT_BYTES else FRAME_BYTES) for n in sizes)
    return framed + PACKET_BYTES * -(-framed // SEGMENT_BYTES)
