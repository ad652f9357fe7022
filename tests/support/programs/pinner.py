"""Pin snapshots of another process as told.  Usage: pinner.py ROOT NAME NONCE"""

import sys
from pathlib import Path

from obeying import obey

from dpwa.data.layout import Layout
from dpwa.data.peer_memory import PeerMemory

memory = PeerMemory(sys.argv[2], bytes.fromhex(sys.argv[3]), Path(sys.argv[1]))
leases = []


def pin():
    leases.append(memory.pin(Layout.of_bytes()))
    return leases[-1].snapshot.version


def values():
    return sorted({int(value) for lease in leases for value in lease.snapshot.data})


obey(pin=pin, values=values, release=lambda: leases.pop().release())
