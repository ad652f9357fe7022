"""SkyPilot: it tells every machine of a task the addresses of all."""

from __future__ import annotations

from dpwa.discovery.launcher import Cluster, Environ, number
from dpwa.errors import UserError
from dpwa.launch.ports import FIRST_PORT


class SkyPilot:
    """The machines of one task, with one process each."""

    name = "SkyPilot"
    variables: tuple[str, ...] = ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")

    def told(self, environ: Environ) -> str:
        """Say which machine this is."""
        if any(not environ.get(variable, "").strip() for variable in self.variables):
            return ""
        size = len(environ["SKYPILOT_NODE_IPS"].split())
        return f"machine {environ['SKYPILOT_NODE_RANK']} of {size}, port {FIRST_PORT} on each"

    def cluster(self, environ: Environ, name: str | None) -> Cluster:
        """Return all machines."""
        rank, hosts = number(environ, "SKYPILOT_NODE_RANK"), environ["SKYPILOT_NODE_IPS"].split()
        if rank is None or rank >= len(hosts):
            raise UserError(
                f"SKYPILOT_NODE_RANK: expected a whole number below {len(hosts)}, as "
                f"SKYPILOT_NODE_IPS has so many (got {environ['SKYPILOT_NODE_RANK']})"
            )
        if name is not None:
            raise UserError(
                f"name={name!r} (argument or DPWA_NAME): under SkyPilot nodes are called machine0, "
                "machine1, ... by their rank, as all have to know the names of all"
            )
        nodes = [
            {"name": f"machine{index}", "host": host, "port": FIRST_PORT}
            for index, host in enumerate(hosts)
        ]
        return Cluster(f"machine{rank}", tuple(nodes))
