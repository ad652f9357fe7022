"""SLURM: every task of a job step knows the hosts of all, and what runs where."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from dpwa.discovery.launcher import Cluster, Environ, number
from dpwa.errors import UserError
from dpwa.types import JsonObject

LOWEST_PORT, PORTS = 20_000, 10_000  # of jobs: below those that systems give to connections
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_HOST = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")


class Slurm:
    """The tasks of one `srun`, on one host or several, any number of them on each.

    Nobody is asked: hosts are those of the step, and ports follow from the numbers of job, step
    and task. A task that is started again has the same address.
    """

    name = "SLURM"
    variables: tuple[str, ...] = (
        "SLURM_STEP_ID",
        "SLURM_STEP_NODELIST",
        "SLURM_NODEID",
        "SLURM_LOCALID",
    )

    def told(self, environ: Environ) -> str:
        """Say which task this is."""
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""  # as in the script of `sbatch` itself, which is no task
        task, tasks = environ.get("SLURM_PROCID", "?"), environ.get("SLURM_STEP_NUM_TASKS", "?")
        return f"task {task} of {tasks} on {environ['SLURM_STEP_NODELIST']}"

    def cluster(self, environ: Environ, name: str | None) -> Cluster:
        """Return all tasks of the step."""
        if name is not None:
            raise UserError(
                f"name={name!r} (argument or DPWA_NAME): under SLURM nodes are called HOST-0, "
                "HOST-1, ... by their task on that host, as all have to know the names of all"
            )
        hosts = expanded(environ["SLURM_STEP_NODELIST"])
        counts = tasks_of_hosts(environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        index, local = number(environ, "SLURM_NODEID"), number(environ, "SLURM_LOCALID")
        tasks = dict(zip(range(len(hosts)), counts, strict=False)).get(
            -1 if index is None else index, 0
        )
        if index is None or local is None or len(counts) != len(hosts) or local >= tasks:
            told = " ".join(
                f"{variable}={environ.get(variable, '')}"
                for variable in (*self.variables, "SLURM_STEP_TASKS_PER_NODE")
            )
            raise UserError(f"SLURM: expected hosts, the tasks of each, and which is this: {told}")
        first = first_port(environ)
        nodes = [
            _node(host, len(hosts) > 1, task, first + task)
            for host, tasks in zip(hosts, counts, strict=True)
            for task in range(tasks)
        ]
        own_name = f"{hosts[index]}-{local}"
        own = next(node for node in nodes if node["name"] == own_name)
        if len(hosts) > 1:
            own["bind"] = "*"  # a host may know its own name as 127.0.1.1
        return Cluster(own_name, tuple(nodes))


def expanded(hosts: str) -> list[str]:
    """Return the hosts of a list such as `gpu[01-03,07],login`, in their order.

    Raises:
        UserError: it is none.
    """
    found = [name for part in _HOST.findall(hosts) for name in _expanded(part.strip())]
    if not found or "" in found or hosts.count("[") != hosts.count("]"):
        raise UserError(f"expected a list of hosts as SLURM writes it (got {hosts!r})")
    return found


def tasks_of_hosts(counts: str) -> list[int]:
    """Return the numbers in a list such as `2(x3),1`.

    Raises:
        UserError: it is none.
    """
    found: list[int] = []
    for part in counts.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise UserError(f"expected numbers of tasks as SLURM writes them (got {counts!r})")
        found += [int(match[1])] * int(match[2] or 1)
    return found


def first_port(environ: Environ) -> int:
    """Return the port of the first task on each host: another one for every step."""
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    return LOWEST_PORT + zlib.crc32(step.encode()) % PORTS


def _node(host: str, is_remote: bool, task: int, port: int) -> JsonObject:
    return {
        "name": f"{host}-{task}",
        "host": host if is_remote else "127.0.0.1",
        "port": port,
    }


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for item in inside.split(","):
        first, _, last = item.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UserError(f"expected numbers in brackets (got {part!r})")
        for value in range(int(first), int(last or first) + 1):
            yield from (f"{head}{value:0{len(first)}d}{end}" for end in _expanded(tail))
