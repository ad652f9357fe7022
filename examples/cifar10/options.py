"""Read the options of a run from the command line and from the environment of the launcher."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path

from dpwa.config import load_config
from dpwa.errors import UserError

MODEL_NAMES = ("resnet18", "vgg16", "small")


@dataclass(frozen=True)
class Place:
    """The node of this process. A process outside a run of dpwa trains alone.

    Attributes:
        name: the node's name in the configuration.
        config: path of the configuration, or `None` if the process trains alone.
        rank: index of the node, from 0 to world_size - 1.
        world_size: number of nodes.
    """

    name: str = "alone"
    config: str | None = None
    rank: int = 0
    world_size: int = 1

    @classmethod
    def of(cls, options: argparse.Namespace) -> Place:
        """Return the node from the command line, or from the variables of `dpwa launch`.

        Raises:
            UserError: the configuration or a variable is invalid, or there is no such node.
        """
        if options.name is None:
            return cls.from_environment()
        config = load_config(options.config_file)
        own = config.node(options.name)
        return cls(own.name, options.config_file, config.nodes.index(own), len(config.nodes))

    @classmethod
    def from_environment(cls) -> Place:
        """Return the node from the variables of `dpwa launch`. Without DPWA_NAME, train alone.

        Raises:
            UserError: DPWA_NAME is set, but another variable is missing or invalid.
        """
        name = os.environ.get("DPWA_NAME")
        if name is None:
            return cls()
        try:
            config = os.environ["DPWA_CONFIG"]
            rank, world_size = int(os.environ["DPWA_RANK"]), int(os.environ["DPWA_WORLD_SIZE"])
        except KeyError as missing:
            raise UserError(f"DPWA_NAME is set, but {missing.args[0]} is not") from None
        except ValueError:
            raise UserError("DPWA_RANK and DPWA_WORLD_SIZE must be integers") from None
        if not 0 <= rank < world_size:
            raise UserError(f"DPWA_RANK must be from 0 to {world_size - 1} (got {rank})")
        return cls(name, config, rank, world_size)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. A mistake ends the process with exit code 2."""
    parser = argparse.ArgumentParser(
        description="Train a network on CIFAR-10, alone or as one node of a run with gossip."
    )
    add = parser.add_argument
    add(
        "--data-dir",
        type=Path,
        default=Path("data", "cifar-10-batches-py"),
        help="your folder cifar-10-batches-py (%(default)s)",
    )
    add("--config-file", help="configuration of all nodes, if you do not use `dpwa launch`")
    add("--name", help="name of this node in the configuration")
    add("--resume", "-r", action="store_true", help="continue from the weights of an earlier run")
    add("--model", choices=MODEL_NAMES, default="resnet18", help="network (%(default)s)")
    add("--epochs", type=_count, default=90, help="passes over this node's shard (%(default)s)")
    add("--steps-per-epoch", type=_count, help="end each epoch after N steps, for a quick test")
    add("--batch-size", type=_count, default=128, help="images per step and node (%(default)s)")
    add("--lr", type=_number, default=0.1, help="learning rate at the start (%(default)s)")
    add("--momentum", type=_number, default=0.9, help="Nesterov momentum (%(default)s)")
    add("--weight-decay", type=_number, default=5e-4, help="weight decay (%(default)s)")
    add("--lr-decay", type=_number, default=0.2, help="factor of each decay (%(default)s)")
    add("--lr-decay-every", type=_count, default=30, help="epochs between decays (%(default)s)")
    add(
        "--batch-norm-batches",
        type=_count_or_zero,
        default=20,
        help="training batches to recompute batch-norm statistics before a test. With 0, the test "
        "uses the statistics that gossip averaged (%(default)s)",
    )
    add("--seed", type=_seed, default=0, help="seed of all random choices (%(default)s)")
    add(
        "--output",
        type=_file,
        default=Path("cifar10.pt"),
        help="runs/net.pt: weights in runs/net-NODE.pt, log in runs/net-NODE.csv (%(default)s)",
    )
    options = parser.parse_args(arguments)
    if (options.name is None) != (options.config_file is None):
        parser.error("give --config-file and --name together")
    return options


def _count(text: str) -> int:
    return _integer(text, 1, 2**31 - 1)


def _count_or_zero(text: str) -> int:
    return _integer(text, 0, 2**31 - 1)


def _seed(text: str) -> int:
    return _integer(text, 0, 2**32 - 1)


def _integer(text: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected an integer from {least} to {most} (got {text})")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0 (got {text})")
    return value


def _file(text: str) -> Path:
    path = Path(text)
    if path.name in ("", ".."):
        raise argparse.ArgumentTypeError(f"expected a file such as runs/net.pt (got {text})")
    return path
