"""The cost of a round of gossip in bytes, seconds and waiting, from settings and a link.

A round is one `update_send` and `update_wait` with a training step in between. With

    a   fetches that a round starts: fetch_probability, or the algorithm's own figure
    S   payload of a fetch, after the codec
    r   readers of the asked node at once: 1 + a (N-2)/(N-1), if all begin together
    L   latency, B bandwidth (or `max_upload_mbps`, if that is less)

    fetch    F = L + max(r S / B, (ceil(pieces / 6) - 1) L)
    waiting  w = a max(0, min(F, timeout) - step)
    a round of step + w brings a S bytes, and sends as many; a part, if F exceeds `timeout_ms`

With `algorithm: together` a round brings n = 2 (N-1)/N S bytes, and waits w = 4 L + n / B.

The last term of F is because at most 6 pieces are on their way before the reader must grant more.
The time of codecs is not counted, and nothing is streamed on one host.
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

TIMEOUT_MARGIN = 1.5  # links are slower at times
TIMEOUT_STEP_MS = 100
HOUR_S = 3600
MESSAGES_OF_A_ROUND = 4  # one after the other: entered, asked for, asked for when reduced, ready


class LinkFigures(StrictModel, extra="ignore"):
    """A link between two machines, as both `dpwa bench link` and `dpwa status --json` measure it.

    JSON that has the figures may say more.
    """

    # From a request to the header that answers it.
    latency_ms: float = Field(ge=0.0, allow_inf_nan=False)
    # Payload of one stream, one way.
    bandwidth_mbps: float = Field(gt=0.0, allow_inf_nan=False)

    @property
    def latency_s(self) -> float:
        return self.latency_ms / 1000

    @property
    def bytes_per_s(self) -> float:
        """Payload bytes per second."""
        return self.bandwidth_mbps * BYTES_PER_MBIT


@dataclass(frozen=True)
class Setting:
    """The setting for which the costs of a run are computed."""

    layout: Layout  # of the model
    nodes: int
    step_s: float  # of one training step
    link: LinkFigures  # between any two nodes


@dataclass(frozen=True)
class RoundCost:
    """The mean cost of one node's rounds. It sends as much as it receives."""

    fetches: float  # that a round starts
    fetch_bytes: float  # payload
    fetch_s: float
    wait_s: float  # of a round
    round_s: float
    is_late: bool  # fetches take longer than `timeout_ms`, so that they bring nothing

    @property
    def round_bytes(self) -> float:
        """Payload that a round receives."""
        return self.fetches * self.fetch_bytes

    @property
    def wait_share(self) -> float:
        """Share of the time spent waiting, from 0 to 1."""
        return self.wait_s / self.round_s

    @property
    def mbps(self) -> float:
        """Payload received, in 10^6 bits per second."""
        return self.round_bytes / self.round_s / BYTES_PER_MBIT

    @property
    def gb_per_hour(self) -> float:
        """Payload received, in 10^9 bytes."""
        return self.round_bytes / self.round_s * HOUR_S / 1e9

    @property
    def timeout_ms(self) -> int:
        needed_ms = TIMEOUT_MARGIN * self.fetch_s * 1000
        return math.ceil(needed_ms / TIMEOUT_STEP_MS) * TIMEOUT_STEP_MS


def cost_of(config: Config, setting: Setting) -> RoundCost:
    """Return the cost of a round with a configuration. See the top of this module.

    Settings of single nodes and links are ignored.
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
        fetch_bytes=nbytes * (taken_s / fetch_s),  # what has not come in time is given up
        fetch_s=fetch_s,
        wait_s=wait_s,
        round_s=setting.step_s + wait_s,
        is_late=fetch_s > timeout_s,
    )


def fetch_size(layout: Layout, codec: str, fraction: float) -> tuple[float, float]:
    """Return payload bytes and pieces of a fetch, in the mean of all shards that take turns."""
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
        # Of a node that does not lead; the updates of all count.
        local, of_all = options.periods(nodes)
        has_groups = len({node.group for node in config.nodes}) > 1 and local < of_all
        return sum(min(1.0, nodes / period) for period in ([local] * has_groups + [of_all]))
    period, probability = getattr(options, "period", None), getattr(options, "probability", None)
    asks = config.fetch_probability if probability is None else float(probability)
    if period is not None:
        asks = 1 / period
    # Of an exchange both ends get a snapshot: the node asks, or it is asked.
    return 1 - (1 - asks) ** 2 if kind.terms is Terms.EXCHANGE else asks


def _averaged(config: Config, setting: Setting) -> RoundCost:
    """Return the cost of averaging, in which each value goes to its reducer, and back."""
    nbytes = 2 * (1 - 1 / setting.nodes) * (setting.layout.nbytes or 0)
    seconds = MESSAGES_OF_A_ROUND * setting.link.latency_s + nbytes / _rate(config, setting.link)
    return RoundCost(1.0, nbytes, seconds, seconds, setting.step_s + seconds, is_late=False)


def _readers(config: Config, asks: float, nodes: int) -> float:
    """Return the number of nodes that read at once from the asked node, including this one."""
    kind = algorithm(config.algorithm)
    if kind.terms is Terms.EXCHANGE:
        return 1.0  # who is in an exchange is busy for others
    if isinstance(config.options_of(config.algorithm), LSGDOptions):
        return float(nodes - 1)  # all ask the leader as soon as the period has passed
    return 1 + asks * (nodes - 2) / (nodes - 1)


def _rate(config: Config, link: LinkFigures) -> float:
    """Return payload bytes per second."""
    if config.max_upload_mbps is None:
        return link.bytes_per_s
    return min(link.bytes_per_s, config.max_upload_mbps * BYTES_PER_MBIT)
