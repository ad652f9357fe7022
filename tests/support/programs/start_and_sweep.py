"""start_and_sweep.py ROOT COUNT: make shared memory; print how many folders did not stay."""

import sys
from pathlib import Path

from dpwa.data.shared_memory import SharedMemory, sweep

root = Path(sys.argv[1])
made = []
for _ in range(int(sys.argv[2])):
    made.append(SharedMemory(root))
    made[-1].allocate(1)
    sweep(root)
print(sum(len(list((root / shared.name).glob("*"))) != 2 for shared in made), flush=True)
sys.stdin.read()
for shared in made:
    shared.close()
