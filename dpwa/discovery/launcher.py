"""What a launcher tells a process of the run that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dpwa.types import JsonObject

Environ = Mapping[str, str]


@dataclass(frozen=True)
class Cluster:
    """Which node this process is, and all nodes.

    Attributes:
        name: of this node.
        nodes: as in the setting `nodes`, this node's own among them.
    """

    name: str
    nodes: tuple[JsonObject, ...]

    @property
    def settings(self) -> JsonObject:
        """The settings that say so."""
        return {"nodes": list(self.nodes)}


@dataclass(frozen=True)
class OpenCluster:
    """Which node this process is, and whom it may ask to be let in.

    Attributes:
        name: of this node.
        listen: where it listens, as in the setting `listen`.
        join: where others are, as in the setting `join`; some may not be there any more.
    """

    name: str
    listen: str
    join: tuple[str, ...]

    @property
    def settings(self) -> JsonObject:
        """The settings that say so; if nobody answers, it begins and keeps asking."""
        return {"listen": self.listen, "join": list(self.join), "alone": True}


class Launcher(Protocol):
    """Finds the cluster that a launcher has started.

    Attributes:
        name: as users call it.
        variables: what it sets for each process that it starts, if that is how it tells.
    """

    name: str
    variables: tuple[str, ...]

    def told(self, environ: Environ) -> str:
        """Say in words what the environment tells; empty if this launcher has not set it."""
        ...

    def cluster(self, environ: Environ, name: str | None) -> Cluster | OpenCluster:
        """Return the cluster; it may wait for the other processes of the run.

        Args:
            environ: the environment of the process, of which `told` has something to say.
            name: of this node, if the user has chosen one.

        Raises:
            UserError: what the launcher says makes no sense, or the others do not come.
        """
        ...


def number(environ: Environ, variable: str) -> int | None:
    """Return the whole number in a variable, at least 0; `None` if there is none."""
    text = environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
