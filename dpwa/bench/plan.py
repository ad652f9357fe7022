"""What the processes of a benchmark are told: the plan, and which of them a process is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from dpwa.bench.suite import LinkSettings
from dpwa.config import Config
from dpwa.launch.ports import free_ports
from dpwa.types import StrictModel

LOCAL_HOST = "127.0.0.1"
BYTES_PER_VALUE = 4  # float32
BYTES_PER_MB = 1_000_000
PATIENCE_S = 120.0  # for another process that does not come
LEAST_TIMEOUT_MS = 5_000
SLOWEST_BYTES_PER_MS = 10_000  # of a link that a fetch must not time out on: 80 Mbit/s


class BenchPlan(StrictModel):
    """What all processes of a benchmark have in common.

    Attributes:
        nbytes: size of the model.
        hosts: where each process listens, by rank.
        ports: TCP ports by rank, of each link and of whatever else listens.
    """

    nbytes: int
    hosts: tuple[str, ...]
    ports: dict[str, tuple[int, ...]]

    def config(self, name: str, link: LinkSettings) -> Config:
        """Return the configuration of the nodes of a link; no variable can change it."""
        nodes = [
            {"name": node_name(rank), "host": host, "port": port}
            for rank, (host, port) in enumerate(zip(self.hosts, self.ports[name], strict=True))
        ]
        timeout_ms = LEAST_TIMEOUT_MS + self.nbytes // SLOWEST_BYTES_PER_MS
        return Config.model_validate(
            {
                "nodes": nodes,
                "timeout_ms": timeout_ms,
                "repeat": "merge",  # every round is to be a whole one, whoever is ahead
                "collective_timeout_s": PATIENCE_S,
                "seed": 0,
                "log_level": "error",  # nodes come and go within seconds, and would warn about it
                **link.settings(),
            }
        )


class MeasuringPlan(BenchPlan):
    """What all benchmarks of `dpwa bench` tell their processes.

    Attributes:
        measures: names of what to measure.
        repetitions: how often each measure is recorded.
    """

    measures: tuple[str, ...]
    repetitions: int


class PlanePlan(MeasuringPlan):
    """The plan of `dpwa bench plane`.

    Attributes:
        tensors: number of tensors that the model has.
    """

    benchmark: Literal["plane"] = "plane"
    tensors: int


class CollectivesPlan(MeasuringPlan):
    """The plan of `dpwa bench collectives`; `nbytes` are those of the value."""

    benchmark: Literal["collectives"] = "collectives"


class TablesPlan(MeasuringPlan):
    """The plan of `dpwa bench tables`; `nbytes` are those of the table.

    Attributes:
        rows: number of rows.
        columns: values of a row.
    """

    benchmark: Literal["tables"] = "tables"
    rows: int
    columns: int


BenchmarkPlan = Annotated[
    PlanePlan | CollectivesPlan | TablesPlan, Field(discriminator="benchmark")
]
_BENCHMARK_PLAN: TypeAdapter[BenchmarkPlan] = TypeAdapter(BenchmarkPlan)

AnyPlan = TypeVar("AnyPlan", bound=BenchPlan)


@dataclass(frozen=True)
class Rank:
    """Which of the processes this one is.

    Attributes:
        index: 0 for the one that times what is timed in one process only.
        count: number of processes.
        plan_path: the file that holds the plan.
    """

    index: int
    count: int
    plan_path: Path

    @classmethod
    def from_environment(cls) -> Rank:
        """Read what the launcher has set."""
        return cls(
            int(os.environ["DPWA_RANK"]),
            int(os.environ["DPWA_WORLD_SIZE"]),
            Path(os.environ["DPWA_CONFIG"]),
        )

    @property
    def name(self) -> str:
        """Name of this process's nodes."""
        return node_name(self.index)

    def plan(self, kind: type[AnyPlan]) -> AnyPlan:
        """Read the plan."""
        return kind.model_validate_json(self.plan_path.read_text(encoding="utf-8"))

    def benchmark_plan(self) -> PlanePlan | CollectivesPlan | TablesPlan:
        """Read the plan of whichever benchmark of `dpwa bench` this is."""
        return _BENCHMARK_PLAN.validate_json(self.plan_path.read_text(encoding="utf-8"))


def ports_for(names: Sequence[str], count: int) -> dict[str, tuple[int, ...]]:
    """Return free ports of this machine, `count` for each name.

    Raises:
        UserError: there are too few.
    """
    ports = iter(free_ports(count * len(names)))
    return {name: tuple(islice(ports, count)) for name in names}


def node_name(rank: int) -> str:
    """Return the name of the nodes of a process."""
    return f"w{rank + 1}"


def nbytes_of(size_mb: float) -> int:
    """Return a size in 10^6 bytes as bytes of whole values."""
    return round(size_mb * BYTES_PER_MB / BYTES_PER_VALUE) * BYTES_PER_VALUE
