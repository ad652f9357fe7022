"""Whether the topology of a configuration fits its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpwa.config.graphs import require_connected, topology_of
from dpwa.config.problems import Place, Problems
from dpwa.errors import ConfigError, UserError
from dpwa.policy.topology.rules import FileOptions
from dpwa.types import StrictModel

_EVERYBODY = ("random", "full")  # connected by definition; 4096 nodes take seconds to look at


@dataclass(frozen=True)
class Placement:
    """A topology, with its options and the nodes that it is for.

    Attributes:
        topology: its name.
        place: where the name is written.
        options: of the topology.
        file_place: where the path of its file is written, if it has one.
        names: of all nodes, in order.
    """

    topology: str
    place: Place
    options: StrictModel
    file_place: Place
    names: Sequence[str]


def note_misfit(placement: Placement, problems: Problems) -> None:
    """Note what is wrong with the edges in a file, or that no node can learn from some other."""
    if placement.topology in _EVERYBODY:
        return
    name, options, names = placement.topology, placement.options, placement.names
    try:
        require_connected(topology_of(name, options, names), options, names)
    except ConfigError as error:
        _note_file(placement, error, problems)
    except UserError as error:
        message = error.text.removeprefix(f"topology {name}: ")
        problems.add(placement.place, "topology", message)
    except Exception as error:  # noqa: BLE001 - whatever the rule of a plugin raises
        message = f"expected neighbours (got {type(error).__name__}: {error})"
        problems.add(placement.place, "topology", message)


def _note_file(placement: Placement, error: ConfigError, problems: Problems) -> None:
    """Note mistakes where they are: in the file, or in its path if they are of all of it."""
    path = placement.options.path if isinstance(placement.options, FileOptions) else ""
    for line in error.problems:
        if line.startswith(f"{path}: "):
            problems.add(placement.file_place, "file.path", line)
        else:
            problems.add_line(line)
