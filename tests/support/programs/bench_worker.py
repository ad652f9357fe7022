"""A process of `dpwa bench`, as its launcher starts it; see `dpwa/bench/worker.py`."""

import torch.distributed  # noqa: F401  (which it needs, so that what forks it has it already)

from dpwa.bench.worker import main

main()
