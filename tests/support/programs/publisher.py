"""publisher.py ROOT NBYTES SLOTS: publish snapshots as told; every byte of one is its version."""

import itertools
import signal
import sys
from pathlib import Path

from obeying import answer, obey

from dpwa.clock import SystemClock
from dpwa.data.layout import Layout
from dpwa.data.shared_memory import SharedMemory
from dpwa.data.snapshot import FinishedCopy, SnapshotPool
from dpwa.types import TrainingProgress

root, nbytes, slots = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shared = SharedMemory(root)
pool = SnapshotPool(SystemClock(), 60.0, slots, shared)


def write(data):
    data.fill((pool.version + 1) % 256)
    return FinishedCopy(True)


def write_half(data):
    """Fill the first half of a slot, and never come to the second."""
    write(data[: nbytes // 2])
    answer("half written")
    signal.pause()


def publish(write=write):
    snapshot = pool.publish(Layout.of_bytes(), nbytes, TrainingProgress(clock=1.0), write)
    return None if snapshot is None else snapshot.version


def publish_for_ever():
    answer("publishing")
    while True:
        publish()


def tell_for_ever():
    """Put news on the board until this process is killed: bytes that say how many there are."""
    answer("telling")
    for value in itertools.cycle(range(256)):
        shared.tell(bytes([value]) * (1 + 15 * value))


obey(
    name=lambda: [shared.name, shared.nonce.hex()],
    publish=publish,
    publish_half=lambda: publish(write_half),
    publish_for_ever=publish_for_ever,
    tell_for_ever=tell_for_ever,
)
