"""Computes the traffic and the time of a round of gossip from the settings and a link.

A round is one `update_send` and `update_wait` with a training step in between. With

    a   fetches that a round starts: fetch_probability, or a figure of the algorithm
    S   payload of a fetch, after the codec
    r   readers of the asked node at once: 1 + a (N-2)/(N-1), if all start together
    L   latency, B bandwidth (or `max_upload_mbps`, if that is less)

    fetch    F = L + max(r S / B, (ceil(pieces / 6) - 1) L)
    waiting  w = a max(0, min(F, timeout) - step)
    a round of step + w receives and sends a S bytes, or a part of them if F exceeds `timeout_ms`

With `algorithm: together` a round receives n = 2 (N-1)/N S bytes, and waits w = 4 L + n / B.

The last term of F counts, because at most 6 pieces are on their way before the reader grants more.
The time of codecs does not count, and nodes on one host stream nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from dpwa.algorithms import Terms, algorithm
from dpwa.algorithms.lsgd import LSGDOptions
from dpwa.config import Config
from dpwa.data.codecs.sizes import payload_bytes
from dpwa.data.layout import Layout
from dpwa.node.serving.upload import BYTES_PER_MBIT
from dpwa.types import StrictModel
from dpwa.wire import limits
from dpwa.wire.fetching import pieces_of
from dpwa.wire.shards import shards_of

TIMEOUT_MARGIN = 1.5  # factor, because links are sometimes slower
TIMEOUT_STEP_MS = 100
HOUR_S = 3600
MESSAGES_OF_A_ROUND = 4  # in a row: entered, request, request of results, ready


class LinkFigures(StrictModel, extra="ignore"):
    """A link between two machines, as `dpwa bench link` and `dpwa status --json` measure it.

    JSON with these figures may have other keys.
    """

    # Time from a request to the header of the answer.
    latency_ms: float = Field(ge=0.0, allow_inf_nan=False)
    # Payload of one stream, in one direction.
    bandwidth_mbps: float = Field(gt=0.0, allow_inf_nan=False)

    @property
    def latency_s(self) -> float:
        return self.latency_ms / 1000

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth in payload bytes per second."""
        return self.bandwidth_mbps * BYTES_PER_MBIT


@dataclass(frozen=True)
class Setting:
    """The model, step time, link and nodes of a run whose cost is computed."""

    layout: Layout  # layout of the model
    nodes: int
    step_s: float  # time of one training step
    link: LinkFigures  # between any two nodes


@dataclass(frozen=True)
class RoundCost:
    """The mean cost of a round for one node, which sends as much as it receives."""

    fetches: float  # number of fetches that a round starts
    fetch_bytes: float  # payload of one fetch
    fetch_s: float
    wait_s: float  # waiting time of a round
    round_s: float
    is_late: bool  # fetches exceed `timeout_ms`, so nothing arrives

    @property
    def round_bytes(self) -> float:
        """Payload bytes that a node receives in a round."""
        return self.fetches * self.fetch_bytes

    @property
    def wait_share(self) -> float:
        """Share of the time spent waiting, from 0 to 1."""
        return self.wait_s / self.round_s

    @property
    def mbps(self) -> float:
        """Received payload, in 10^6 bits per second."""
        return self.round_bytes / self.round_s / BYTES_PER_MBIT

    @property
    def gb_per_hour(self) -> float:
        """Received payload, in 10^9 bytes per hour."""
        return self.round_bytes / self.round_s * HOUR_S / 1e9

    @property
    def timeout_ms(self) -> int:
        needed_ms = TIMEOUT_MARGIN * self.fetch_s * 1000
        return math.ceil(needed_ms / TIMEOUT_STEP_MS) * TIMEOUT_STEP_MS


def cost_of(config: Config, setting: Setting) -> RoundCost:
    """Return the traffic and the time of a round of gossip with this configuration.

    The module's docstring has the formulas. Settings of single nodes and links are ignored.
    """
    kind, asks = algorithm(config.algorithm), asks_per_round(config, setting.nodes)
    if kind.averages_gradients:
        return _averaged(config, setting)
    nbytes, pieces = fetch_size(setting.layout, config.codec, config.fraction)
    turns = max(0, math.ceil(pieces / limits.CREDIT_CHUNKS) - 1)
    streamed_s = _readers(config, asks, setting.nodes) * nbytes / _rate(config, setting.link)
    fetch_s = setting.link.latency_s + max(streamed_s, turns * setting.link.latency_s)
    timeout_s = config.timeout_ms / 1000
    taken_s = min(fetch_s, timeout_s)
    wait_s = asks * max(0.0, taken_s - setting.step_s)
    return RoundCost(
        fetches=asks,
        fetch_bytes=nbytes * (taken_s / fetch_s),  # the rest of a late fetch is dropped
        fetch_s=fetch_s,
        wait_s=wait_s,
        round_s=setting.step_s + wait_s,
        is_late=fetch_s > timeout_s,
    )


def fetch_size(layout: Layout, codec: str, fraction: float) -> tuple[float, float]:
    """Return the payload bytes and the pieces (messages) of a fetch, as means over all shards."""
    shards = shards_of(layout, fraction)
    pieces = [piece for shard in shards for piece in pieces_of(layout, layout.nbytes or 0, shard)]
    nbytes = sum(payload_bytes(codec, piece.nbytes, piece.dtype) for piece in pieces)
    return nbytes / len(shards), len(pieces) / len(shards)


def asks_per_round(config: Config, nodes: int) -> float:
    """Return the mean number of fetches of one node in a round."""
    kind = algorithm(config.algorithm)
    options = config.options_of(config.algorithm)
    if kind.averages_gradients:
        return 1.0
    if isinstance(options, LSGDOptions):
        # For a node that is not the leader. The updates of all nodes count.
        local, of_all = options.periods(nodes)
        has_groups = len({node.group for node in config.nodes}) > 1 and local < of_all
        return sum(min(1.0, nodes / period) for period in ([local] * has_groups + [of_all]))
    period, probability = getattr(options, "period", None), getattr(options, "probability", None)
    asks = config.fetch_probability if probability is None else float(probability)
    if period is not None:
        asks = 1 / period
    # Both nodes of an exchange fetch a snapshot, so a node also fetches if it is asked.
    return 1 - (1 - asks) ** 2 if kind.terms is Terms.EXCHANGE else asks


def _averaged(config: Config, setting: Setting) -> RoundCost:
    """Return the cost of averaging gradients. Each value travels to its reducer and back."""
    nbytes = 2 * (1 - 1 / setting.nodes) * (setting.layout.nbytes or 0)
    seconds = MESSAGES_OF_A_ROUND * setting.link.latency_s + nbytes / _rate(config, setting.link)
    return RoundCost(1.0, nbytes, seconds, seconds, setting.step_s + seconds, is_late=False)


def _readers(config: Config, asks: float, nodes: int) -> float:
    """Return how many nodes, including this node, read from one peer at the same time."""
    kind = algorithm(config.algorithm)
    if kind.terms is Terms.EXCHANGE:
        return 1.0  # a node is in one exchange at a time
    if isinstance(config.options_of(config.algorithm), LSGDOptions):
        return float(nodes - 1)  # all nodes ask the leader at the end of the period
    return 1 + asks * (nodes - 2) / (nodes - 1)


def _rate(config: Config, link: LinkFigures) -> float:
    """Return the rate of a link in payload bytes per second."""
    if config.max_upload_mbps is None:
        return link.bytes_per_s
    return min(link.bytes_per_s, config.max_upload_mbps * BYTES_PER_MBIT)
