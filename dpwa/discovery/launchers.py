"""The launchers that may have started this process, and their information about its run.

**torchrun**, and other launchers that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the
processes exchange their addresses through the run's store, once. No process group is made.

**Ray**: each actor or task of one driver writes its address to the store of the cluster, and asks
the others there to admit it. So actors may start, die and return elsewhere. Ray is needed only when
one starts.

**SLURM**: every task of a job step knows the hosts of all tasks.

**SkyPilot** gives every machine of a task the addresses of all.

**mpirun** and other launchers of MPI give a process its rank. The processes exchange their
addresses like those of torchrun.

**Kubernetes**: the pods of an indexed job have host names that end with their number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

from dpwa.config.endpoints import MAX_PORT, is_label, tcp_endpoint
from dpwa.discovery.interfaces import OwnHost, named_host, own_host
from dpwa.errors import UserError
from dpwa.launch.ports import FIRST_PORT, held_ports
from dpwa.types import JsonObject

log = logging.getLogger("dpwa.discovery")

PATIENCE_S = 300.0  # for the slowest rank to come this far; as that of torch's own stores
POLL_S = 0.05
MAX_NAMED = 8  # of the ranks that are missing
RAY_NAMESPACE = "dpwa"  # of the store; what is in it lives as long as the cluster
SLURM_PORTS = range(20_000, 30_000)  # of jobs: below those that systems give to connections

_calls = count(1)  # of this process; all processes of a run make them in the same order
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_HOST = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")


class Launcher(Protocol):
    """Finds the cluster that a launcher has started."""

    name: str  # as users call it
    variables: tuple[str, ...]  # that it sets for each process; empty if it tells otherwise

    def told(self, environ: Mapping[str, str]) -> str:
        """Describe this launcher's environment variables, or return "" if they are not set."""
        ...

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        """Return the name of this node, and settings with the places of the others.

        This may wait for the other processes of the run. Raises `UserError` if they do not arrive
        or the launcher's data are invalid. A `name` is the user's choice.
        """
        ...


class Torchrun:
    """The processes of one run of torchrun, on one machine or several."""

    name = "torchrun"
    variables: tuple[str, ...] = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

    def told(self, environ: Mapping[str, str]) -> str:
        if any(not environ.get(variable, "").strip() for variable in Torchrun.variables):
            return ""
        rank, size = environ["RANK"], environ["WORLD_SIZE"]
        master = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        return f"rank {rank} of {size}, which exchange their addresses at {master}"

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        rank, size = number(environ, "RANK"), number(environ, "WORLD_SIZE")
        port = number(environ, "MASTER_PORT")
        if rank is None or size is None or rank >= size or port is None or port > MAX_PORT:
            told = " ".join(f"{variable}={environ[variable]}" for variable in Torchrun.variables)
            raise UserError(
                f"{self.name}: expected whole numbers, RANK below WORLD_SIZE (got {told})"
                " [DPWA-E040]"
            )
        own = own_host(environ, environ["MASTER_ADDR"])
        exchange = _Exchange(environ, rank, size, port)
        own = _seen_by_all(own, environ, exchange)
        log.info("rank %d of %d is at %s, %s", rank, size, own.host, own.reason)
        with held_ports(1, own.host) as ports:  # until all ranks of this machine have one
            node = {"name": name or f"rank{rank}", "host": own.host, "port": ports[0]}
            nodes = exchange.all("node", node)
        exchange.end_exchange()
        return str(node["name"]), {"nodes": nodes}


def _seen_by_all(own: OwnHost, environ: Mapping[str, str], exchange: _Exchange) -> OwnHost:
    """Return an address that all processes can reach.

    The route of the first process to itself is loopback. Then the route to a different one counts.
    """
    hosts = [entry["host"] for entry in exchange.all("host", {"host": own.host})]
    elsewhere = [host for host in hosts if not OwnHost(host, "").is_loopback]
    if not own.is_loopback or not elsewhere or named_host(environ) is not None:
        return own
    return own_host(environ, elsewhere[0])


class _Exchange:
    """Lets every rank read the messages of all ranks.

    Messages of processes that ended and were restarted may still be in the store, and nothing in
    the environment distinguishes attempts, because TORCHELASTIC_RESTART_COUNT rises only if the
    process itself had failed. So each rank sends what it has read, until all have read the same,
    including its own message.
    """

    def __init__(self, environ: Mapping[str, str], rank: int, size: int, port: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._rank, self._ranks = rank, range(size)
        self._process = secrets.token_hex(8)
        self._prefix = f"dpwa/{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{next(_calls)}"
        # torchrun has a store of its own; where there is none, rank 0 has it while it is needed.
        self._is_master = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._address = f"{environ['MASTER_ADDR']}:{port}"
        with self._explained():
            self._store = TCPStore(
                environ["MASTER_ADDR"],
                port,
                is_master=self._is_master,
                timeout=timedelta(seconds=PATIENCE_S),
                wait_for_workers=False,
                multi_tenant=True,  # the script may have a process group with a store there
            )

    def all(self, what: str, value: JsonObject) -> list[JsonObject]:
        """Send a value, and return the values of all ranks, in order."""
        end = time.monotonic() + PATIENCE_S
        with self._explained():
            self._say(what, json.dumps([self._process, value]))
            while True:
                said = self._read(what)
                if None not in said:
                    self._say(f"{what}-read", _digest(said))
                    if set(self._read(f"{what}-read")) == {_digest(said).encode()}:
                        return [json.loads(words)[1] for words in said if words is not None]
                self._wait(said, end)

    def end_exchange(self) -> None:
        end = time.monotonic() + PATIENCE_S
        with self._explained():
            self._say("end", "")
            while self._is_master and None in (said := self._read("end")):
                self._wait(said, end)

    def _say(self, what: str, words: str) -> None:
        self._store.set(self._key(what, self._rank), words)

    def _read(self, what: str) -> list[bytes | None]:
        keys = [self._key(what, rank) for rank in self._ranks]
        if self._store.check(keys):
            return list(self._store.multi_get(keys))
        return [self._store.get(key) if self._store.check([key]) else None for key in keys]

    def _wait(self, said: list[bytes | None], end: float) -> None:
        if time.monotonic() >= end:
            missing = [f"rank {rank}" for rank, words in enumerate(said) if words is None]
            who = ", ".join(missing[:MAX_NAMED]) or "a restarted rank"
            raise UserError(
                f"rank {self._rank} of {len(self._ranks)} has waited {PATIENCE_S:g} s for {who}, "
                f"to exchange addresses at {self._address} [DPWA-E035]"
            )
        time.sleep(POLL_S)

    def _key(self, what: str, rank: int) -> str:
        return f"{self._prefix}/{what}/{rank}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of a store, whatever the reason
            raise UserError(
                f"rank {self._rank} of {len(self._ranks)} could not exchange addresses with the "
                f"others at {self._address}: {str(error).splitlines()[0]} [DPWA-E039]"
            ) from None


def _digest(said: list[bytes | None]) -> str:
    return hashlib.blake2b(b"\0".join(words or b"" for words in said), digest_size=16).hexdigest()


class Mpi(Torchrun):
    """The processes of one `mpirun`, of Open MPI, or of others that use PMI."""

    name = "mpirun"
    variables: tuple[str, ...] = ("OMPI_COMM_WORLD_RANK and _SIZE", "PMI_RANK and _SIZE")

    def told(self, environ: Mapping[str, str]) -> str:
        found = self._as_of_torchrun(environ)
        return "" if found is None else super().told(found)

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        return super().cluster(self._as_of_torchrun(environ) or {}, name)

    def _as_of_torchrun(self, environ: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the variables that torchrun would have set.

        Where the user has not said at which address the processes meet, they are on one host.
        """
        # srun sets those of PMI, too, and `Slurm` knows more
        kinds = ("OMPI_COMM_WORLD_", *(("PMI_",) if "SLURM_STEP_ID" not in environ else ()))
        kind = next((k for k in kinds if environ.get(f"{k}RANK") and environ.get(f"{k}SIZE")), "")
        if not kind:
            return None
        rank, size = environ[f"{kind}RANK"], environ[f"{kind}SIZE"]
        local = environ.get(f"{kind}LOCAL_SIZE") or environ.get("MPI_LOCALNRANKS") or size
        if local != size and "MASTER_ADDR" not in environ:
            raise UserError(
                f"mpirun: expected MASTER_ADDR, a host of this run, as {local} of {size} processes "
                "are on this host: mpirun -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29400 [DPWA-E040]"
            )
        job = environ.get("PMIX_NAMESPACE") or f"{os.getuid()} {os.getppid()}"
        port = SLURM_PORTS[zlib.crc32(job.encode()) % len(SLURM_PORTS)]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**place, **environ, "RANK": rank, "WORLD_SIZE": size}


class Ray:
    """The actors and tasks of one driver. Those in a placement group are a separate cluster."""

    name = "Ray"
    variables: tuple[str, ...] = ()

    def told(self, environ: Mapping[str, str]) -> str:  # noqa: ARG002
        """Ask Ray itself, which does not set the environment."""
        ray: Any = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return ""
        context = ray.get_runtime_context()
        if context.worker.mode != ray.WORKER_MODE:
            return ""
        what = "actor" if context.get_actor_id() else "task"
        return f"{what} {_own_name(context)} of job {context.get_job_id()}"

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        import ray

        context = ray.get_runtime_context()
        own = named_host(environ) or OwnHost(ray.util.get_node_ip_address(), "as Ray has it")
        with held_ports(1, own.host) as ports:
            listen = tcp_endpoint(own.host, ports[0])
        name = name or _own_name(context)
        log.info("%s is at %s, %s", name, own.host, own.reason)
        others = _exchanged(context, name, listen)
        join = [f"{who}@{where}" for who, where in others]  # some may not be there any more
        return name, {"listen": listen, "join": join, "alone": True}


def _own_name(context: Any) -> str:
    """Return the name of the actor, if a node may have it, or a part of its number.

    An actor that Ray restarts, and a task that it tries again, keep it.
    """
    actor = context.get_actor_id()
    given = context.get_actor_name() if actor else ""
    if given and is_label(given):
        return str(given)
    return f"actor-{actor[:12]}" if actor else f"task-{context.get_task_id()[:12]}"


def _exchanged(context: Any, name: str, listen: str) -> Iterator[tuple[str, str]]:
    """Store the place of this node. Yield names and addresses of others, which may be gone."""
    from ray.experimental import internal_kv as store  # the one that Ray's own libraries use

    run = context.get_placement_group_id() or context.get_job_id()
    store._internal_kv_put(f"{run}/{name}", listen, overwrite=True, namespace=RAY_NAMESPACE)
    for key in sorted(store._internal_kv_list(f"{run}/", namespace=RAY_NAMESPACE)):
        who = key.decode().rpartition("/")[2]
        where = store._internal_kv_get(key, namespace=RAY_NAMESPACE)
        if who != name and where:
            yield who, where.decode()


class Slurm:
    """The tasks of one `srun`, on one host or several, any number of them on each.

    Hosts are those of the step, and ports follow from the numbers of job, step and task. So a
    restarted task has the same address.
    """

    name = "SLURM"
    variables: tuple[str, ...] = (
        "SLURM_STEP_ID",
        "SLURM_STEP_NODELIST",
        "SLURM_NODEID",
        "SLURM_LOCALID",
    )

    def told(self, environ: Mapping[str, str]) -> str:
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""  # as in the script of `sbatch` itself, which is no task
        task, tasks = environ.get("SLURM_PROCID", "?"), environ.get("SLURM_STEP_NUM_TASKS", "?")
        return f"task {task} of {tasks} on {environ['SLURM_STEP_NODELIST']}"

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        _require_no_name(name, self.name, "HOST-0, HOST-1, ... by their task on that host")
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
            raise UserError(
                f"SLURM: expected hosts, the tasks of each, and this task's number: {told} "
                "[DPWA-E041]"
            )
        first = first_port(environ)
        nodes: list[JsonObject] = [
            {
                "name": f"{host}-{task}",
                "host": host if len(hosts) > 1 else "127.0.0.1",
                "port": first + task,
            }
            for host, tasks in zip(hosts, counts, strict=True)
            for task in range(tasks)
        ]
        own_name = f"{hosts[index]}-{local}"
        own = next(node for node in nodes if node["name"] == own_name)
        if len(hosts) > 1:
            own["bind"] = "*"  # a host may know its own name as 127.0.1.1
        return own_name, {"nodes": nodes}


def expanded(hosts: str) -> list[str]:
    """Return the hosts of a list such as `gpu[01-03,07],login`, in their order."""
    found = [name for part in _HOST.findall(hosts) for name in _expanded(part.strip())]
    if not found or "" in found or hosts.count("[") != hosts.count("]"):
        raise UserError(f"expected a list of hosts as SLURM writes it (got {hosts!r}) [DPWA-E042]")
    return found


def tasks_of_hosts(counts: str) -> list[int]:
    """Return the numbers in a list such as `2(x3),1`."""
    found: list[int] = []
    for part in counts.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise UserError(
                f"expected numbers of tasks as SLURM writes them (got {counts!r}) [DPWA-E043]"
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def first_port(environ: Mapping[str, str]) -> int:
    """Return the port of the first task on each host, a different one for every step."""
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    return SLURM_PORTS[zlib.crc32(step.encode()) % len(SLURM_PORTS)]


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for item in inside.split(","):
        first, _, last = item.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UserError(f"expected numbers in brackets (got {part!r}) [DPWA-E044]")
        for value in range(int(first), int(last or first) + 1):
            yield from (f"{head}{value:0{len(first)}d}{end}" for end in _expanded(tail))


class SkyPilot:
    """The machines of one task, with one process each."""

    name = "SkyPilot"
    variables: tuple[str, ...] = ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")

    def told(self, environ: Mapping[str, str]) -> str:
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""
        size = len(environ["SKYPILOT_NODE_IPS"].split())
        return f"machine {environ['SKYPILOT_NODE_RANK']} of {size}, port {FIRST_PORT} on each"

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        hosts = environ["SKYPILOT_NODE_IPS"].split()
        rank = _number_below(len(hosts), environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
        _require_no_name(name, self.name, "machine0, machine1, ... by their rank")
        nodes = [
            {"name": f"machine{index}", "host": host, "port": FIRST_PORT}
            for index, host in enumerate(hosts)
        ]
        return f"machine{rank}", {"nodes": nodes}


class Kubernetes:
    """The pods of an indexed job, behind a headless service. `WORLD_SIZE` is its `completions`."""

    name = "Kubernetes"
    variables: tuple[str, ...] = ("JOB_COMPLETION_INDEX", "WORLD_SIZE")

    def told(self, environ: Mapping[str, str]) -> str:
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""
        index, size = (environ[variable] for variable in self.variables)
        return f"pod {index} of {size} of an indexed job, port {FIRST_PORT} on each"

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        _require_no_name(name, self.name, "JOB-0, JOB-1, ... by their number")
        size = number(environ, "WORLD_SIZE") or 0
        index = _number_below(size, environ, *self.variables)
        pod, dot, domain = socket.getfqdn().partition(".")
        job = pod.removesuffix(f"-{index}")
        nodes: list[JsonObject] = [
            {"name": f"{job}-{each}", "host": f"{job}-{each}{dot}{domain}", "port": FIRST_PORT}
            for each in range(size)
        ]
        nodes[index]["bind"] = "*"  # the name may not be in DNS yet
        return str(nodes[index]["name"]), {"nodes": nodes}


def _require_no_name(name: str | None, launcher: str, names: str) -> None:
    if name is not None:
        raise UserError(
            f"name={name!r} (argument or DPWA_NAME): under {launcher} nodes are called "
            f"{names}, so that all know all names [DPWA-E046]"
        )


def _number_below(size: int, environ: Mapping[str, str], variable: str, whose: str) -> int:
    found = number(environ, variable)
    if found is None or found >= size:
        raise UserError(
            f"{variable}: expected a whole number below {size}, as {whose} says (got "
            f"{environ[variable]}) [DPWA-E045]"
        )
    return found


def number(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the whole number in a variable, at least 0, or `None` if there is none."""
    text = environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
