"""exhaust_shm.py NBYTES: take segments from /dev/shm until there is no room;
print what they are.
"""

import errno
import sys

from dpwa.data.shared_memory import SHARED_MEMORY_ROOT, SharedMemory

nbytes = int(sys.argv[1])
segments = []
with SharedMemory() as shared:
    try:
        while True:
            segments.append(shared.allocate(nbytes))
    except OSError as error:
        print(errno.errorcode[error.errno])
    print(len(segments), len(list((SHARED_MEMORY_ROOT / shared.name).glob("slot-*"))))
    for segment in segments:
        segment.data.fill(1)  # room that was promised is there: else a bus error
    segments.pop(0).close()
    shared.allocate(nbytes)
