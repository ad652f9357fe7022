"""Sockets that belong to ZeroMQ, which may close them at any time: what the kernel does with them.

A descriptor may stand for something else from one moment to the next. So whoever remembers one also
remembers its inode, and acts on a copy.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # as on all architectures that PyTorch runs on
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)  # `ret 0`
_DROP_PROGRAM = struct.pack("HP", 1, ctypes.addressof(_DROP_ALL))


def copy_of(descriptor: int, inode: int | None = None) -> socket.socket:
    """Return a socket of its own for a descriptor.

    Args:
        descriptor: of a socket.
        inode: what it must stand for; `None`: anything.

    Raises:
        OSError: it stands for no socket, or not for this one any more.
    """
    copy = os.dup(descriptor)
    try:
        if inode is not None and os.fstat(copy).st_ino != inode:
            raise ConnectionError("closed")
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def drop_packets(own: socket.socket) -> None:
    """Have the kernel drop whatever arrives; TCP sends it again later.

    Raises:
        OSError: that is not possible here.
    """
    own.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _DROP_PROGRAM)


def let_packets_in(own: socket.socket) -> None:
    """Drop nothing any more.

    Raises:
        OSError: nothing was dropped.
    """
    own.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
