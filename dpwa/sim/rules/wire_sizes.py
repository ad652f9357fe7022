"""The bytes that nodes send on the wire, and the times of fetches in closed form.

With `r` readers at one serving node, latency `L` in each direction, `S` bytes of an answer in `P`
pieces, and `s` fetches between two sites, fetches that start together take

    F = 2 L + max(r S / upload, S / download, s S / between sites, (ceil(P / 6) - 1) 2 L)

The last term comes from the credit, because at most 6 pieces are on their way before the reader
grants more. All readers start together, so they share the links fairly until the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpwa.data.layout import Layout, TensorSpec
from dpwa.plan.costs import fetch_size
from dpwa.sim.conditions import Conditions
from dpwa.sim.scenario import RunSpec, node_name
from dpwa.wire import limits
from dpwa.wire.fetching import FetchSession, Greeting
from dpwa.wire.messages import Chunk, Credit, Message, SnapshotHeader, encode

VALUE_BYTES = 4  # float32, the dtype of models
_COUNTER = 10_000  # typical numbers of requests and versions, for the size of a message
_CHECKSUM = 2**31


@dataclass(frozen=True)
class WireSizes:
    """Mean bytes of a fetch on the wire."""

    request: float  # sent by the reader, with its credit
    answer: float  # sent by the serving node
    pieces: float  # mean number of pieces in an answer

    @classmethod
    def from_spec(cls, spec: RunSpec, dimension: int) -> WireSizes:
        config = spec.config
        layout = _layout(spec, dimension)
        payload, pieces = fetch_size(layout, config.codec, config.fraction)
        greeting = Greeting(node_name(spec.scenario.nodes - 1), ())
        fetch = FetchSession(_COUNTER, layout, greeting, codec=config.codec, version=_COUNTER)
        request = fetch.request_message(budget_ms=config.timeout_ms)
        header = SnapshotHeader(
            request=_COUNTER,
            version=_COUNTER,
            clock=_COUNTER + 0.5,
            loss=0.5,
            is_finite=True,
            nbytes=layout.nbytes or 0,
            codec=config.codec,
            news=(),
        )
        chunk = Chunk(request=_COUNTER, index=int(pieces), checksum=_CHECKSUM)
        grants = max(0.0, pieces - limits.CREDIT_CHUNKS) / limits.GRANTED_CHUNKS
        piece = wire_bytes([len(encode(chunk)), round(payload / pieces)])
        credit = _nbytes(Credit(request=_COUNTER, chunks=limits.GRANTED_CHUNKS))
        return cls(
            request=_nbytes(request) + grants * credit,
            answer=_nbytes(header) + pieces * piece,
            pieces=pieces,
        )


def _layout(spec: RunSpec, dimension: int) -> Layout:
    """Return the layout of a snapshot of `model_mb` megabytes, or else of `dimension` values."""
    megabytes = spec.scenario.model_mb
    count = dimension if megabytes is None else max(1, round(megabytes * 1e6 / VALUE_BYTES))
    return Layout((TensorSpec("parameters", "float32", (count,), VALUE_BYTES),))


def _nbytes(message: Message) -> int:
    return wire_bytes([len(encode(message))])


SEGMENT_BYTES = 1448  # payload of one packet
PACKET_BYTES = 66  # headers of Ethernet, IP and TCP
FRAME_BYTES = 9  # header of a long ZMTP frame
SHORT_FRAME_BYTES = 2
SHORT_BYTES = 256


def wire_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes on the wire of a message with frames of these sizes."""
    framed = sum(n + (SHORT_FRAME_BYTES if n < SHORT_BYTES else FRAME_BYTES) for n in sizes)
    return framed + PACKET_BYTES * -(-framed // SEGMENT_BYTES)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Links:
    def __init__(self, conditions: Conditions, sizes: WireSizes) -> None:
        self._conditions = conditions
        self._sizes = sizes
        self._turns = max(0, math.ceil(sizes.pieces / limits.CREDIT_CHUNKS) - 1)

    def fetch_s(self, readers: Integers, servers: Integers) -> Floats:
        """Return the duration in seconds of each simultaneous fetch, shape (K,)."""
        conditions = self._conditions
        flows = np.bincount(servers, minlength=conditions.nodes)[servers]
        between = self._between_sites(readers, servers)
        return self._taken_s(conditions.latencies_s(readers, servers), flows, between)

    def longest_s(self, readers: int) -> float:
        """Return the maximum seconds of a fetch if this many nodes read from one node at once."""
        conditions = self._conditions
        longest_s = np.array([conditions.longest_latency_s])
        return float(self._taken_s(longest_s, np.array([readers]), np.array([conditions.nodes]))[0])

    def _taken_s(self, latency_s: Floats, flows: Integers, between: Integers) -> Floats:
        """Return the formula of the module's docstring.

        `flows` is `r`, the streams of the same server. `between` is `s`, all streams of its site to
        other sites, or 0 for a stream within a site.
        """
        conditions, nbytes = self._conditions, self._sizes.answer
        round_trip_s = 2 * conditions.mean_delay_s(latency_s)
        stream_s = np.maximum(
            flows * nbytes / conditions.upload_bytes_per_s,
            nbytes / conditions.download_bytes_per_s,
        )
        stream_s = np.maximum(stream_s, between * nbytes / conditions.between_sites_bytes_per_s)
        taken_s: Floats = round_trip_s + np.maximum(stream_s, self._turns * round_trip_s)
        return taken_s

    def _between_sites(self, readers: Integers, servers: Integers) -> Integers:
        """Return how many streams leave the site of each server, or 0 within a site."""
        sites = self._conditions.site_of
        is_far = sites[readers] != sites[servers]
        flows = np.bincount(sites[servers[is_far]], minlength=len(self._conditions.sites))
        return np.where(is_far, flows[sites[servers]], 0)
