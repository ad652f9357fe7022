"""What `dpwa sim` simulates, as typed values, each described.

A scenario file has the keys of `Scenario` and, beside them, any setting of an ordinary
configuration but those that name nodes and addresses; `dpwa/sim/load.py` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpwa.config import Config
from dpwa.config.model import MAX_SEED
from dpwa.types import Fraction, StrictModel, refusal

MAX_NODES = 100_000
MAX_WHOLE_NODES = 2000  # with every message: an hour of a core, and some GB

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def _check_detail(value: object) -> object:
    if value == "rules":
        raise refusal("nodes, as rules alone are simulated no more")
    return value


class Partition(StrictModel):
    """A time in which nodes are cut off from the others."""

    at_s: NotNegative = Field(description="when it begins, in seconds")
    for_s: Positive = Field(description="how long it lasts, in seconds")
    share: Fraction = Field(default=0.5, description="of the nodes that are cut off together")


class SiteSpec(StrictModel):
    """Nodes that are near each other, and far from those of other sites."""

    name: str = Field(min_length=1, description="what the site is called")
    share: Positive = Field(default=1.0, description="of the nodes, relative to the other sites")


class NetworkSpec(StrictModel):
    """The links of all nodes. Times and rates are of one direction of one node's link."""

    latency_ms: NotNegative = Field(
        default=0.5, description="from one node to another, one way, in milliseconds"
    )
    jitter_ms: NotNegative = Field(default=0.0, description="what a message may take besides")
    loss: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0,
        description="share of packets that are lost and sent again, which takes a round trip",
    )
    upload_mbps: Positive = Field(default=1000.0, description="megabits per second a node sends")
    download_mbps: Positive = Field(default=1000.0, description="the same, that it receives")
    sites: tuple[SiteSpec, ...] = Field(
        default=(), description="data centres or regions that the nodes are in; none: one"
    )
    between_sites_latency_ms: NotNegative = Field(
        default=40.0, description="one way, between nodes of two sites"
    )
    between_sites_mbps: Positive | None = Field(
        default=None, description="that all nodes of a site send to others together; null: no limit"
    )
    unreachable: Fraction = Field(
        default=0.0,
        description="share of the nodes that nobody can connect to, as behind NAT; they connect",
    )
    partitions: tuple[Partition, ...] = Field(default=(), description="when nodes are cut off")


class StragglerSpec(StrictModel):
    """Nodes that are slower than the others."""

    nodes: int | None = Field(default=None, ge=1, description="how many; null: `share` of them")
    share: Fraction = Field(default=0.0, description="of the nodes, if `nodes` is not given")
    slower: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(
        default=10.0, description="how many times as long a step takes them"
    )
    from_s: NotNegative = Field(default=0.0, description="when it begins, in seconds")
    for_s: Positive | None = Field(default=None, description="how long it lasts; null: to the end")


class ComputeSpec(StrictModel):
    """How long training steps take."""

    step_ms: NotNegative = Field(default=100.0, description="of a usual node, in milliseconds")
    steps_ms: tuple[Positive, ...] = Field(
        default=(),
        description="of each node by its number, in place of `step_ms` and `spread`; if there are "
        "more nodes, from the first again, such as [30, 30, 90]",
    )
    spread: NotNegative = Field(
        default=0.0, description="between nodes: sigma of a log-normal distribution of their speeds"
    )
    jitter: NotNegative = Field(
        default=0.0, description="between steps of one node: sigma of a log-normal distribution"
    )
    stragglers: tuple[StragglerSpec, ...] = Field(default=(), description="nodes that are slower")


class CostSpec(StrictModel):
    """What a node's own work takes, beside its training steps; `dpwa sim calibrate` measures it."""

    round_ms: NotNegative = Field(default=0.0, description="of each round, in milliseconds")
    publish_ms_per_mb: NotNegative = Field(
        default=0.0, description="to publish a snapshot, for each megabyte of `model_mb`"
    )
    merge_ms_per_mb: NotNegative = Field(default=0.0, description="to merge one, likewise")


class LossOfNodes(StrictModel):
    """Nodes that end at one moment, without a word."""

    at_s: NotNegative = Field(description="when, in seconds")
    share: Fraction = Field(description="of the nodes")


class ChurnSpec(StrictModel):
    """How nodes come and go."""

    start_spread_s: NotNegative = Field(
        default=0.0, description="nodes start at random moments of so many seconds"
    )
    kill_every_s: Positive | None = Field(
        default=None, description="mean time from one kill of a random node to the next"
    )
    return_after_s: Positive | None = Field(
        default=None, description="mean time until who was killed or lost starts again; null: never"
    )
    lost: tuple[LossOfNodes, ...] = Field(
        default=(), description="many nodes that are killed at once"
    )
    trace: str = Field(
        default="",
        description="CSV file with columns time_s, node (a number) and event (start, kill or "
        "leave), relative to the folder of the scenario",
    )


class TargetSpec(StrictModel):
    """What the run is to reach; it is told when, and the simulation ends there."""

    variance_ratio: Positive | None = Field(
        default=None,
        description="variance between nodes, by that of the beginning; of tasks that begin alike "
        "(quadratic, digits) the variance itself",
    )
    loss: float | None = Field(
        default=None, allow_inf_nan=False, description="mean loss of the living nodes"
    )
    accuracy: Fraction | None = Field(
        default=None, description="of the mean model on data that nobody trains on (digits)"
    )


class Scenario(StrictModel):
    """One simulated run."""

    nodes: int = Field(ge=1, le=MAX_NODES, description="how many nodes there are")
    rounds: int | None = Field(
        default=None, ge=1, le=10_000_000, description="updates that each node takes at most"
    )
    seconds: Positive | None = Field(default=None, description="of virtual time, at most")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="of all chance")
    task: Literal["consensus", "quadratic", "factorisation", "digits"] = Field(
        default="consensus", description="what is trained"
    )
    schedule: Literal["lockstep", "asynchronous"] = Field(
        default="asynchronous",
        description="lockstep: all nodes take each round together; asynchronous: nobody waits",
    )
    detail: Annotated[Literal["auto", "arrays", "nodes"], BeforeValidator(_check_detail)] = Field(
        default="auto",
        description="nodes: whole nodes with every message, at most 2000; arrays: plain gossip in "
        "lockstep, of thousands of nodes at once; auto: arrays where they are exact, else nodes",
    )
    membership: Literal["listed", "open"] = Field(
        default="listed",
        description="listed: each node has the list of all; open: each has one address to join",
    )
    model_mb: Positive | None = Field(
        default=None,
        description="megabytes of a snapshot on the wire; null: as large as the model of the task",
    )
    network: NetworkSpec = Field(default=NetworkSpec(), description="the links between nodes")
    compute: ComputeSpec = Field(default=ComputeSpec(), description="how long steps take")
    costs: CostSpec = Field(default=CostSpec(), description="of the nodes' own work")
    churn: ChurnSpec = Field(default=ChurnSpec(), description="how nodes come and go")
    target: TargetSpec = Field(default=TargetSpec(), description="what is to be reached")


@dataclass(frozen=True)
class RunSpec:
    """One run, as `dpwa/sim/load.py` has read it.

    Attributes:
        scenario: what is simulated.
        config: the ordinary settings; its nodes are n0, n1, ... of the scenario, each at an address
            of its own. With `membership: open` it has `join`, with the address of n0.
        task_options: those of the task, which are set under its name.
    """

    scenario: Scenario
    config: Config
    task_options: StrictModel


def node_name(index: int) -> str:
    """Return the name of a simulated node; the first has index 0."""
    return f"n{index}"
