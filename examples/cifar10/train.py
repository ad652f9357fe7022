"""Train on CIFAR-10 with gossip. Each node has a private shard, and there is no coordinator.

Run: dpwa launch -n 4 -- python examples/cifar10/train.py --data-dir cifar-10-batches-py
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable

from options import Place, parse_arguments

from dpwa.errors import DpwaError


def main() -> int:
    """Return the exit code: 0, 2 for the user's mistakes, 130 for Ctrl-C."""
    options = parse_arguments()
    try:
        place = Place.of(options)
        train = import_train()
        train(options, place)
    except KeyboardInterrupt:
        return 130
    except (DpwaError, OSError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    return 0


def import_train() -> Callable[[Namespace, Place], None]:
    """Return the training loop. The import of torch takes seconds."""
    # No file is open yet, so Ctrl-C can end the process at once.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from training import train

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return train


if __name__ == "__main__":
    sys.exit(main())
