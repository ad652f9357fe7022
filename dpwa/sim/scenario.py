"""The scenario of `dpwa sim`, as typed values with descriptions.

A scenario file has the keys of `Scenario` and any setting of an ordinary configuration except those
that name nodes and addresses. `dpwa/sim/load.py` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpwa.config import Config
from dpwa.config.model import MAX_SEED
from dpwa.types import Fraction, StrictModel, refusal

MAX_NODES = 100_000
MAX_WHOLE_NODES = 2000  # which take an hour of a core, and some GB of memory

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


def _check_detail(value: object) -> object:
    if value == "rules":
        raise refusal("auto, arrays or nodes, because rules was removed")
    return value


class Partition(StrictModel):
    """A time in which some nodes are cut off from the others."""

    at_s: NotNegative = Field(description="start, in seconds")
    for_s: Positive = Field(description="duration, in seconds")
    share: Fraction = Field(default=0.5, description="share of the nodes that are cut off together")


class SiteSpec(StrictModel):
    """Nodes that are close to each other, and far from the nodes of other sites."""

    name: str = Field(min_length=1, description="name of the site")
    share: Positive = Field(
        default=1.0, description="share of the nodes, relative to the other sites"
    )


class NetworkSpec(StrictModel):
    """The links of all nodes. Times and rates are of one direction of one node's link."""

    latency_ms: NotNegative = Field(
        default=0.5, description="time from one node to another in one direction, in milliseconds"
    )
    jitter_ms: NotNegative = Field(
        default=0.0, description="random extra time of a message, in milliseconds"
    )
    loss: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0,
        description="share of packets that are lost. A round trip later, they are sent again",
    )
    upload_mbps: Positive = Field(
        default=1000.0, description="upload rate of a node, in megabits per second"
    )
    download_mbps: Positive = Field(
        default=1000.0, description="download rate of a node, in megabits per second"
    )
    sites: tuple[SiteSpec, ...] = Field(
        default=(),
        description="data centres or regions of the nodes. By default, there is one site",
    )
    between_sites_latency_ms: NotNegative = Field(
        default=40.0,
        description="time between nodes of two sites in one direction, in milliseconds",
    )
    between_sites_mbps: Positive | None = Field(
        default=None,
        description="upload rate of all nodes of a site together to other sites, "
        "in megabits per second. null = no limit",
    )
    unreachable: Fraction = Field(
        default=0.0,
        description="share of the nodes that accept no connections, such as nodes behind NAT. "
        "These nodes can connect to other nodes",
    )
    partitions: tuple[Partition, ...] = Field(
        default=(), description="periods in which some nodes are cut off"
    )


class StragglerSpec(StrictModel):
    """Nodes that are slower than the others."""

    nodes: int | None = Field(
        default=None, ge=1, description="number of slow nodes. null = `share` of all nodes"
    )
    share: Fraction = Field(default=0.0, description="share of slow nodes, if `nodes` is not given")
    slower: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(
        default=10.0, description="factor by which the steps of slow nodes take longer"
    )
    from_s: NotNegative = Field(default=0.0, description="start, in seconds")
    for_s: Positive | None = Field(
        default=None, description="duration, in seconds. null = until the end"
    )


class ComputeSpec(StrictModel):
    """The times of training steps."""

    step_ms: NotNegative = Field(
        default=100.0, description="median step time of the nodes, in milliseconds"
    )
    steps_ms: tuple[Positive, ...] = Field(
        default=(),
        description="step time of each node in milliseconds, such as [30, 30, 90], instead of "
        "`step_ms` and `spread`. If there are more nodes, the list repeats",
    )
    spread: NotNegative = Field(
        default=0.0,
        description="sigma of the log-normal distribution of the step times of different nodes",
    )
    jitter: NotNegative = Field(
        default=0.0,
        description="sigma of the log-normal distribution of the step times of one node",
    )
    stragglers: tuple[StragglerSpec, ...] = Field(default=(), description="nodes that are slower")


class CostSpec(StrictModel):
    """The time of a node's work outside its training steps. `dpwa sim calibrate` measures it."""

    round_ms: NotNegative = Field(
        default=0.0,
        description="time in each round for work besides training, publishing and merging, in "
        "milliseconds",
    )
    publish_ms_per_mb: NotNegative = Field(
        default=0.0,
        description="time to publish a snapshot, in milliseconds per megabyte of `model_mb`",
    )
    merge_ms_per_mb: NotNegative = Field(
        default=0.0,
        description="time to merge a snapshot, in milliseconds per megabyte of `model_mb`",
    )


class LossOfNodes(StrictModel):
    """Nodes that end at the same moment, without a goodbye."""

    at_s: NotNegative = Field(description="time, in seconds")
    share: Fraction = Field(description="share of the nodes")


class ChurnSpec(StrictModel):
    """Nodes that start, end and return."""

    start_spread_s: NotNegative = Field(
        default=0.0, description="nodes start at random moments of this period, in seconds"
    )
    kill_every_s: Positive | None = Field(
        default=None, description="mean time between two kills of random nodes, in seconds"
    )
    return_after_s: Positive | None = Field(
        default=None,
        description="mean time until a killed or lost node restarts, in seconds. null = never",
    )
    lost: tuple[LossOfNodes, ...] = Field(
        default=(), description="groups of nodes that are killed at the same time"
    )
    trace: str = Field(
        default="",
        description="CSV file with columns time_s, node (a number) and event (start, kill or "
        "leave), relative to the folder of the scenario",
    )


class TargetSpec(StrictModel):
    """The target of the run. The simulation ends when the run reaches it."""

    variance_ratio: Positive | None = Field(
        default=None,
        description="variance of the parameters between nodes, divided by the variance at the "
        "start. With the tasks quadratic and digits, the variance is not divided, because all "
        "nodes start equal",
    )
    loss: float | None = Field(
        default=None, allow_inf_nan=False, description="mean loss of the living nodes"
    )
    accuracy: Fraction | None = Field(
        default=None,
        description="accuracy of the mean model on test data, only with `task: digits`",
    )


class Scenario(StrictModel):
    """One simulated run."""

    nodes: int = Field(ge=1, le=MAX_NODES, description="number of nodes")
    rounds: int | None = Field(
        default=None, ge=1, le=10_000_000, description="maximum number of updates of each node"
    )
    seconds: Positive | None = Field(default=None, description="maximum virtual time, in seconds")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="seed of all random choices")
    task: Literal["consensus", "quadratic", "digits"] = Field(
        default="consensus", description="the training task"
    )
    schedule: Literal["lockstep", "asynchronous"] = Field(
        default="asynchronous",
        description="With lockstep, all nodes do each round at the same time. With asynchronous, "
        "nodes do not wait for each other",
    )
    detail: Annotated[Literal["auto", "arrays", "nodes"], BeforeValidator(_check_detail)] = Field(
        default="auto",
        description="With nodes, at most 2000 complete nodes exchange simulated messages. With "
        "arrays, dpwa simulates only plain gossip in lockstep, but for thousands of nodes. auto "
        "selects arrays if the result is exact, and nodes otherwise",
    )
    membership: Literal["listed", "open"] = Field(
        default="listed",
        description="With listed, each node starts with the list of all nodes. With open, each "
        "node starts with the address of one node, and joins",
    )
    model_mb: Positive | None = Field(
        default=None,
        description="size of a snapshot in megabytes. null = the size of the task's model",
    )
    network: NetworkSpec = Field(default=NetworkSpec(), description="the links between nodes")
    compute: ComputeSpec = Field(default=ComputeSpec(), description="the times of training steps")
    costs: CostSpec = Field(
        default=CostSpec(), description="the times of publishing, merging and other work"
    )
    churn: ChurnSpec = Field(default=ChurnSpec(), description="nodes that start, end and return")
    target: TargetSpec = Field(
        default=TargetSpec(), description="results at which the simulation ends"
    )


@dataclass(frozen=True)
class RunSpec:
    """What to simulate: a scenario, the configuration of its nodes, and the options of its task.

    Attributes:
        scenario: the simulated scenario.
        config: the ordinary settings. Its nodes are n0, n1, ..., each with its own address. With
            `membership: open` it has `join`, with the address of n0.
        task_options: the options of the task, which the scenario has under the task's name.
    """

    scenario: Scenario
    config: Config
    task_options: StrictModel


def node_name(index: int) -> str:
    """Return the name of a simulated node. The first has index 0."""
    return f"n{index}"
