"""shared_memory.py ROLE ARGUMENTS...: use shared memory as the function of that name says."""

import errno
import itertools
import os
import signal
import sys
from pathlib import Path

from obeying import answer, obey

from dpwa.clock import SystemClock
from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory
from dpwa.data.shared_memory import SHARED_MEMORY_ROOT, SharedMemory, sweep
from dpwa.data.snapshot import FinishedCopy, SnapshotPool
from dpwa.types import TrainingProgress


def publish_as_told(root, nbytes, slots):
    """Publish snapshots of which every byte is the version."""
    shared, nbytes = SharedMemory(Path(root)), int(nbytes)
    pool = SnapshotPool(SystemClock(), 60.0, int(slots), shared)

    def write(data):
        data.fill((pool.version + 1) % 256)
        return FinishedCopy(True)

    def write_half(data):
        """Fill the first half of a slot, and never come to the second."""
        write(data[: nbytes // 2])
        answer("half written")
        signal.pause()

    def publish(write=write):
        snapshot = pool.publish_snapshot(
            Layout.of_bytes(), nbytes, TrainingProgress(clock=1.0), write
        )
        return None if snapshot is None else snapshot.version

    def publish_for_ever():
        answer("publishing")
        while True:
            publish()

    def tell_for_ever():
        """Put news on the board until this process is killed: bytes that say how many there are."""
        answer("telling")
        for value in itertools.cycle(range(256)):
            shared.post_news(bytes([value]) * (1 + 15 * value))

    obey(
        name=lambda: [shared.name, shared.nonce.hex()],
        publish=publish,
        publish_half=lambda: publish(write_half),
        publish_for_ever=publish_for_ever,
        tell_for_ever=tell_for_ever,
    )


def pin_as_told(root, name, nonce):
    """Pin snapshots of another process."""
    memory, leases = PeerMemory(name, bytes.fromhex(nonce), Path(root)), []

    def pin():
        leases.append(memory.pin(Layout.of_bytes()))
        return leases[-1].snapshot.version

    def values():
        return sorted({int(value) for lease in leases for value in lease.snapshot.data})

    obey(pin=pin, values=values, release=lambda: leases.pop().release())


def fork_and_close(root):
    """Make what a forked child closes; print what is left."""
    root = Path(root)
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


def start_and_sweep(root, count):
    """Make many of it; print how many folders did not stay."""
    root, made = Path(root), []
    for _ in range(int(count)):
        made.append(SharedMemory(root))
        made[-1].allocate(1)
        sweep(root)
    print(sum(len(list((root / shared.name).glob("*"))) != 2 for shared in made), flush=True)
    sys.stdin.read()
    for shared in made:
        shared.close()


def exhaust(nbytes):
    """Take segments from /dev/shm until there is no room; print what they are."""
    segments = []
    with SharedMemory() as shared:
        try:
            while True:
                segments.append(shared.allocate(int(nbytes)))
        except OSError as error:
            print(errno.errorcode[error.errno])
        print(len(segments), len(list((SHARED_MEMORY_ROOT / shared.name).glob("slot-*"))))
        for segment in segments:
            segment.data.fill(1)  # room that was promised is there: else a bus error
        segments.pop(0).close()
        shared.allocate(int(nbytes))


role, *arguments = sys.argv[1:]
globals()[role](*arguments)
