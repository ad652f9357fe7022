"""torchrun, and whoever else sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

The processes tell each other their addresses through the run's store, once; then they let go of it.
No process group is made, and none is needed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from dpwa.config.endpoints import MAX_PORT
from dpwa.discovery.interfaces import OwnHost, named_host, own_host
from dpwa.discovery.launcher import Cluster, Environ, number
from dpwa.errors import UserError
from dpwa.launch.ports import held_ports
from dpwa.message_codes import get_log
from dpwa.types import JsonObject

log = get_log("dpwa.discovery")

PATIENCE_S = 300.0  # for the slowest process to come this far; as that of torch's own stores
POLL_S = 0.05
MOST_NAMED = 8  # of the ranks that are missing
_calls = count(1)  # of this process; all processes of a run make them in the same order


class Torchrun:
    """The processes of one run of torchrun, on one machine or several."""

    name = "torchrun"
    variables: tuple[str, ...] = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

    def told(self, environ: Environ) -> str:
        """Say which rank this is."""
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""
        rank, size = environ["RANK"], environ["WORLD_SIZE"]
        master = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        return f"rank {rank} of {size}, which exchange their addresses at {master}"

    def cluster(self, environ: Environ, name: str | None) -> Cluster:
        """Exchange addresses with all other ranks."""
        rank, size = number(environ, "RANK"), number(environ, "WORLD_SIZE")
        port = number(environ, "MASTER_PORT")
        if rank is None or size is None or rank >= size or port is None or port > MAX_PORT:
            told = " ".join(f"{variable}={environ[variable]}" for variable in self.variables)
            raise UserError(f"torchrun: expected whole numbers, RANK below WORLD_SIZE (got {told})")
        own = own_host(environ, environ["MASTER_ADDR"])
        exchange = _Exchange(environ, rank, size, port)
        own = _seen_by_all(own, environ, exchange)
        log.info("rank %d of %d is at %s, %s", rank, size, own.host, own.reason)
        with held_ports(1, own.host) as ports:  # until all ranks of this machine have one
            node = {"name": name or f"rank{rank}", "host": own.host, "port": ports[0]}
            nodes = exchange.all("node", node)
        exchange.end()
        return Cluster(str(node["name"]), tuple(nodes))


def _seen_by_all(own: OwnHost, environ: Environ, exchange: _Exchange) -> OwnHost:
    """Return an address that all processes can reach.

    Where the first process looks for itself, it finds loopback: then the route to another counts.
    """
    hosts = [entry["host"] for entry in exchange.all("host", {"host": own.host})]
    elsewhere = [host for host in hosts if not OwnHost(host, "").is_loopback]
    if not own.is_loopback or not elsewhere or named_host(environ) is not None:
        return own
    return own_host(environ, elsewhere[0])


class _Exchange:
    """Lets every rank read what all of them have said.

    What processes said that have ended, and were started again, may still be in the store, and
    nothing in the environment tells attempts apart: TORCHELASTIC_RESTART_COUNT is one more only
    where the process had failed. So everybody says what it has read, until all have read the same,
    which has its own words in it.

    Raises:
        UserError: the store of the run is not there, or a rank does not come.
    """

    def __init__(self, environ: Environ, rank: int, size: int, port: int) -> None:
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
        """Say something; return what each rank has said, in their order."""
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

    def end(self) -> None:
        """Let go of the store, once nobody needs it any more."""
        end = time.monotonic() + PATIENCE_S
        with self._explained():
            self._say("end", "")
            while self._is_master and None in (said := self._read("end")):
                self._wait(said, end)

    def _say(self, what: str, words: str) -> None:
        self._store.set(self._key(what, self._rank), words)

    def _read(self, what: str) -> list[bytes | None]:
        """Return what each rank has said so far."""
        keys = [self._key(what, rank) for rank in self._ranks]
        if self._store.check(keys):
            return list(self._store.multi_get(keys))
        return [self._store.get(key) if self._store.check([key]) else None for key in keys]

    def _wait(self, said: list[bytes | None], end: float) -> None:
        """Wait a moment for others.

        Raises:
            UserError: the time is over.
        """
        if time.monotonic() >= end:
            missing = [f"rank {rank}" for rank, words in enumerate(said) if words is None]
            who = ", ".join(missing[:MOST_NAMED]) or "a rank that was started again"
            raise UserError(
                f"rank {self._rank} of {len(self._ranks)} has waited {PATIENCE_S:g} s for {who}, "
                f"to exchange addresses at {self._address}"
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
                f"others at {self._address}: {str(error).splitlines()[0]}"
            ) from None


def _digest(said: list[bytes | None]) -> str:
    return hashlib.blake2b(b"\0".join(words or b"" for words in said), digest_size=16).hexdigest()
