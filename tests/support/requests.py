"""Requests and headers as a peer would send them, whole unless told otherwise."""

from dpwa.wire import limits
from dpwa.wire.messages import Fetch, SnapshotHeader


def fetch_of(fingerprint, **fields):
    """A request for all of a snapshot, as a stream."""
    asked = {"request": 1, "fingerprint": fingerprint, "budget_ms": 2**31, "credit": 1}
    greeting = {"name": "asker", "news": ()}
    newest = {"version": 0, "merged": 0}
    whole = {**greeting, **newest, "chunk_bytes": limits.CHUNK_BYTES, "first": 0, "count": 0}
    return Fetch(**{**asked, **whole, "can_map": False, "codec": "none", **fields})


def header_of(**fields):
    """What begins the answer to request 1: a first version of 100 bytes, not encoded."""
    progress = {"version": 1, "clock": 1.0, "loss": None, "is_finite": None}
    stream = {"nbytes": 100, "codec": "none"}
    return SnapshotHeader(**{"request": 1, **progress, **stream, "news": (), **fields})
