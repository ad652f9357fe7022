"""fork_and_close.py ROOT: make shared memory that a forked child closes; print what is left."""

import os
import sys
from pathlib import Path

from dpwa.data.shared_memory import SharedMemory, sweep

root = Path(sys.argv[1])
shared = SharedMemory(root)
segment = shared.allocate(8)
child = os.fork()
if child == 0:
    segment.close()
    shared.close()
    sys.exit()
_, status = os.waitpid(child, 0)
print(status, sweep(root), *sorted(path.name for path in (root / shared.name).iterdir()))
shared.close()
