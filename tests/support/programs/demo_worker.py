"""A node of the demo, as its launcher starts it; see `dpwa/demo/worker.py`."""

import dpwa.adapters.pytorch  # noqa: F401  (which it needs, so that what forks it has it already)
from dpwa.demo.worker import main

main()
