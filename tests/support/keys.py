"""Keys in folders, and sockets behind a gate."""

import contextlib
import types

from dpwa.clock import SystemClock
from dpwa.transport.door import Door
from dpwa.transport.gate import CurveGate
from dpwa.transport.gatekeeper import Gatekeeper
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder
from dpwa.transport.sockets import serving_socket


def key_folder(path, *names):
    """A folder with secret and public keys of these nodes."""
    folder = KeyFolder(path)
    for name in names:
        folder.create(name)
    return folder


def key_folders(root, *names):
    """A folder for each node, as on machines of their own: its secret key and all public ones."""
    folders = {name: key_folder(root / name, name) for name in names}
    for name, folder in folders.items():
        for other in names:
            if other != name:
                folder.add(other, folders[other].public_key(other))
    return folders


@contextlib.contextmanager
def guarded(context, folder, name, endpoint):
    """A ROUTER behind a gate that goes by the keys of a node; what changes is noted."""
    gate, changes = CurveGate(name, Keyring(folder, name)), []
    keeps = (gate, Door(1000.0))
    keeper = Gatekeeper(name, context, keeps, SystemClock(), lambda: changes.append(1))
    keeper.start()
    try:
        with serving_socket(context, endpoint, gate) as router:
            yield types.SimpleNamespace(router=router, gate=gate, keeper=keeper, changes=changes)
    finally:
        assert keeper.stop(5.0)
