"""Compare publishing and merging a model on a CUDA device with plain copies of the same bytes.

Each repetition runs each measure once. There are no nodes, because only publishing and merging use
the device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from common import nbytes_of, numbers, print_table
from measures import FlatModel

from dpwa.adapters.module_state import ModuleState
from dpwa.data.snapshot import MergeTerms

TENSORS = 100
FACTOR = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=numbers, default=(1.0, 25.0, 100.0, 400.0), help="MB")
    parser.add_argument("--repetitions", type=int, default=30)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this machine has no CUDA device")
    print(torch.cuda.get_device_name())
    result = {size: _measure(nbytes_of(size), options.repetitions) for size in options.sizes}
    names = list(next(iter(result.values())))
    rows = [[name, *(result[size][name] for size in options.sizes)] for name in names]
    print_table(["ms, medians", *(f"{size:g} MB" for size in options.sizes)], rows)
    print(json.dumps(result))


def _measure(nbytes: int, repetitions: int) -> dict[str, float]:
    model = FlatModel(nbytes, TENSORS, seed=0)
    peer, own = torch.empty(nbytes // 4).pin_memory(), model.module.cuda()
    flat, received = (torch.zeros(nbytes // 4, device="cuda") for _ in range(2))
    state = ModuleState(own, with_buffers=True)
    slot = np.zeros(state.nbytes, np.uint8)
    state.start_copy(slot, check_finite=True).wait_complete()
    theirs = slot.copy()  # not pinned, like the memory of a peer's snapshot
    pageable = torch.from_numpy(theirs).view(torch.float32)
    seconds: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], object]) -> None:
        torch.cuda.synchronize()
        before = time.perf_counter()
        work()
        seconds[name].append(time.perf_counter() - before)

    def publish(guard: str) -> None:
        before = time.perf_counter()
        copy = state.start_copy(slot, check_finite=guard == "finite")
        seconds[f"guard: {guard}: the host goes on"].append(time.perf_counter() - before)
        copy.wait_complete()

    def to_host() -> None:
        peer.copy_(flat, non_blocking=True)
        torch.cuda.synchronize()

    def from_pageable() -> None:
        received.copy_(pageable)
        torch.cuda.synchronize()

    def merge() -> None:
        merging = state.merging(MergeTerms(FACTOR))
        merging.merge_bytes(0, theirs)
        torch.cuda.synchronize()

    def lerp() -> None:
        received.copy_(peer, non_blocking=True)
        flat.lerp_(received, FACTOR)
        torch.cuda.synchronize()

    for _ in range(repetitions + 1):  # the first repetition does not count
        timed("copy to pinned memory", to_host)
        timed("publish, guard: finite", lambda: publish("finite"))
        timed("publish, guard: off", lambda: publish("off"))
        timed("copy from pinned memory, lerp_", lerp)
        timed("copy from memory that is not pinned", from_pageable)
        timed("merge", merge)
    return {name: 1000 * median(values[1:]) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
