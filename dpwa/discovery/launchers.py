"""The launchers that may have started this process, and the information that each one gives.

**torchrun**, and other launchers that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The
processes exchange their addresses once, through a `TCPStore` at MASTER_ADDR:MASTER_PORT. They make
no process group.

**Ray**: each actor or task of one driver writes its address to the store of the cluster, and asks
the others in the store to admit it. So actors may start, die and return elsewhere. Ray itself is
needed only at their start.

**SLURM**: every task of a job step knows the hosts of all tasks.

**SkyPilot** gives every machine of a task the addresses of all machines.

**mpirun** and other launchers of MPI give a process its rank. The processes exchange their
addresses as with torchrun.

**Kubernetes**: the pods of an indexed job have host names that end with their index.
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

PATIENCE_S = 300.0  # wait for the slowest rank, as in the stores of torch
POLL_S = 0.05
MAX_NAMED = 8  # of the missing ranks, in a message
RAY_NAMESPACE = "dpwa"  # in the store of the Ray cluster, which keeps entries while it lives
SLURM_PORTS = range(20_000, 30_000)  # for jobs, below the ports of outgoing connections

_calls = count(1)  # of this process; all processes of a run make the same calls in order
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_HOST = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")


class Launcher(Protocol):
    """Finds the cluster that a launcher has started."""

    name: str  # the name that users know
    variables: tuple[str, ...]  # variables that it sets for each process; empty if it sets none

    def told(self, environ: Mapping[str, str]) -> str:
        """Describe the launcher's environment variables, or return "" if they are not set."""
        ...

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        """Return the name of this node, and settings with the addresses of the other nodes.

        This may wait for the other processes of the run. Raises `UserError` if they do not arrive,
        or if the launcher's data are invalid. `name` is a name that the user has chosen.
        """
        ...


class Torchrun:
    """The processes of one run of torchrun, on one or several machines."""

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
                f"{self.name}: expected whole numbers, with RANK below WORLD_SIZE (got {told})"
                " [DPWA-E040]"
            )
        own = own_host(environ, environ["MASTER_ADDR"])
        exchange = _Exchange(environ, rank, size, port)
        own = _seen_by_all(own, environ, exchange)
        log.info("rank %d of %d is at %s, %s", rank, size, own.host, own.reason)
        with held_ports(1, own.host) as ports:  # held until all ranks of this machine have a port
            node = {"name": name or f"rank{rank}", "host": own.host, "port": ports[0]}
            nodes = exchange.all("node", node)
        exchange.end_exchange()
        return str(node["name"]), {"nodes": nodes}


def _seen_by_all(own: OwnHost, environ: Mapping[str, str], exchange: _Exchange) -> OwnHost:
    """Return an address of this machine that all processes can reach.

    The route of the first process to itself is loopback. It uses its route to another process.
    """
    hosts = [entry["host"] for entry in exchange.all("host", {"host": own.host})]
    elsewhere = [host for host in hosts if not OwnHost(host, "").is_loopback]
    if not own.is_loopback or not elsewhere or named_host(environ) is not None:
        return own
    return own_host(environ, elsewhere[0])


class _Exchange:
    """Exchanges messages between all ranks of a run through a `TCPStore`.

    The store may still have messages of processes that ended and were restarted. No variable
    distinguishes attempts, because TORCHELASTIC_RESTART_COUNT rises only if the process itself has
    failed. So each rank also sends a digest of what it has read. The exchange ends when all digests
    are equal, because then every rank has read the current messages of all ranks.
    """

    def __init__(self, environ: Mapping[str, str], rank: int, size: int, port: int) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._rank, self._ranks = rank, range(size)
        self._process = secrets.token_hex(8)
        self._prefix = f"dpwa/{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{next(_calls)}"
        # torchrun has its own store. Without one, rank 0 makes a store for the exchange.
        self._is_master = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._address = f"{environ['MASTER_ADDR']}:{port}"
        with self._explained():
            self._store = TCPStore(
                environ["MASTER_ADDR"],
                port,
                is_master=self._is_master,
                timeout=timedelta(seconds=PATIENCE_S),
                wait_for_workers=False,
                multi_tenant=True,  # the script may have a process group with the same store
            )

    def all(self, what: str, value: JsonObject) -> list[JsonObject]:
        """Send `value` to all ranks, and return the values of all ranks, in order of rank."""
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
                f"rank {self._rank} of {len(self._ranks)} has waited {PATIENCE_S:g} s for the "
                f"address of {who}. The ranks exchange addresses at {self._address} [DPWA-E035]"
            )
        time.sleep(POLL_S)

    def _key(self, what: str, rank: int) -> str:
        return f"{self._prefix}/{what}/{rank}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # a store raises it for every reason
            raise UserError(
                f"rank {self._rank} of {len(self._ranks)} could not exchange addresses with the "
                f"other ranks at {self._address}: {str(error).splitlines()[0]} [DPWA-E039]"
            ) from None


def _digest(said: list[bytes | None]) -> str:
    return hashlib.blake2b(b"\0".join(words or b"" for words in said), digest_size=16).hexdigest()


class Mpi(Torchrun):
    """The processes that `mpirun` of Open MPI, or of an MPI library with PMI, has started."""

    name = "mpirun"
    variables: tuple[str, ...] = ("OMPI_COMM_WORLD_RANK and _SIZE", "PMI_RANK and _SIZE")

    def told(self, environ: Mapping[str, str]) -> str:
        found = self._as_of_torchrun(environ)
        return "" if found is None else super().told(found)

    def cluster(self, environ: Mapping[str, str], name: str | None) -> tuple[str, JsonObject]:
        return super().cluster(self._as_of_torchrun(environ) or {}, name)

    def _as_of_torchrun(self, environ: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the variables that torchrun would set, or `None` if `mpirun` was not used.

        If the user has not set the address of the exchange, all processes must be on one host.
        """
        # srun sets the variables of PMI, too, but `Slurm` knows more
        kinds = ("OMPI_COMM_WORLD_", *(("PMI_",) if "SLURM_STEP_ID" not in environ else ()))
        kind = next((k for k in kinds if environ.get(f"{k}RANK") and environ.get(f"{k}SIZE")), "")
        if not kind:
            return None
        rank, size = environ[f"{kind}RANK"], environ[f"{kind}SIZE"]
        local = environ.get(f"{kind}LOCAL_SIZE") or environ.get("MPI_LOCALNRANKS") or size
        if local != size and "MASTER_ADDR" not in environ:
            raise UserError(
                f"mpirun: expected MASTER_ADDR, a host of this run, because only {local} of {size} "
                "processes are on this host. Run mpirun -x MASTER_ADDR=10.0.0.1 "
                "-x MASTER_PORT=29400 [DPWA-E040]"
            )
        job = environ.get("PMIX_NAMESPACE") or f"{os.getuid()} {os.getppid()}"
        port = SLURM_PORTS[zlib.crc32(job.encode()) % len(SLURM_PORTS)]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**place, **environ, "RANK": rank, "WORLD_SIZE": size}


class Ray:
    """The actors and tasks of one driver. Those of a placement group are a separate cluster."""

    name = "Ray"
    variables: tuple[str, ...] = ()

    def told(self, environ: Mapping[str, str]) -> str:  # noqa: ARG002
        """Describe this actor or task by Ray's API, because Ray sets no environment variables."""
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
        join = [f"{who}@{where}" for who, where in others]  # some of them may be gone
        return name, {"listen": listen, "join": join, "alone": True}


def _own_name(context: Any) -> str:
    """Return a valid node name, from the actor's name or from the id of the actor or task.

    An actor that Ray restarts, or a task that Ray retries, keeps this name.
    """
    actor = context.get_actor_id()
    given = context.get_actor_name() if actor else ""
    if given and is_label(given):
        return str(given)
    return f"actor-{actor[:12]}" if actor else f"task-{context.get_task_id()[:12]}"


def _exchanged(context: Any, name: str, listen: str) -> Iterator[tuple[str, str]]:
    """Store this node's address in Ray. Yield names and addresses of others, maybe dead nodes."""
    from ray.experimental import internal_kv as store  # which Ray's own libraries use, too

    run = context.get_placement_group_id() or context.get_job_id()
    store._internal_kv_put(f"{run}/{name}", listen, overwrite=True, namespace=RAY_NAMESPACE)
    for key in sorted(store._internal_kv_list(f"{run}/", namespace=RAY_NAMESPACE)):
        who = key.decode().rpartition("/")[2]
        where = store._internal_kv_get(key, namespace=RAY_NAMESPACE)
        if who != name and where:
            yield who, where.decode()


class Slurm:
    """The tasks of one `srun`, on one or several hosts, with any number of tasks on each.

    The hosts are those of the step. Ports follow from the numbers of job, step and task, so a
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
            return ""  # for example in the script of `sbatch` itself, which is not a task
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
                "SLURM: expected a list of hosts, the number of tasks on each host, and the number "
                f"of this task (got {told}) [DPWA-E041]"
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
    """Return the hosts of a SLURM list such as `gpu[01-03,07],login`, in the list's order."""
    found = [name for part in _HOST.findall(hosts) for name in _expanded(part.strip())]
    if not found or "" in found or hosts.count("[") != hosts.count("]"):
        raise UserError(
            f"SLURM_STEP_NODELIST: expected a list of hosts (got {hosts!r}) [DPWA-E042]"
        )
    return found


def tasks_of_hosts(counts: str) -> list[int]:
    """Return each host's number of tasks, from a SLURM list such as `2(x3),1`."""
    found: list[int] = []
    for part in counts.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            raise UserError(
                f"SLURM_STEP_TASKS_PER_NODE: expected tasks per host (got {counts!r}) [DPWA-E043]"
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def first_port(environ: Mapping[str, str]) -> int:
    """Return the port of the first task on each host. It is different for every step."""
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
            raise UserError(
                f"SLURM_STEP_NODELIST: expected a form like gpu[1-4] (got {part!r}) [DPWA-E044]"
            )
        for value in range(int(first), int(last or first) + 1):
            yield from (f"{head}{value:0{len(first)}d}{end}" for end in _expanded(tail))


class SkyPilot:
    """The machines of one task of SkyPilot, with one process on each."""

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
    """The pods of an indexed job, with a headless service. `WORLD_SIZE` is its `completions`."""

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
        nodes[index]["bind"] = "*"  # DNS may not know the name yet
        return str(nodes[index]["name"]), {"nodes": nodes}


def _require_no_name(name: str | None, launcher: str, names: str) -> None:
    if name is not None:
        raise UserError(
            f"name={name!r} (argument or DPWA_NAME) cannot be used under {launcher}, because "
            f"dpwa names the nodes {names}. Remove the name [DPWA-E046]"
        )


def _number_below(size: int, environ: Mapping[str, str], variable: str, whose: str) -> int:
    found = number(environ, variable)
    if found is None or found >= size:
        raise UserError(
            f"{variable}: expected a whole number below {size}, the number of nodes in "
            f"{whose} (got {environ[variable]}) [DPWA-E045]"
        )
    return found


def number(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the non-negative integer in an environment variable, or `None` if there is none."""
    text = environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
