"""Keys in folders, and sockets behind a gate."""

import contextlib
import types

from dpwa.clock import SystemClock
from dpwa.transport.accept_limiter import AcceptLimiter
from dpwa.transport.authenticator import Authenticator
from dpwa.transport.authorizer import CurveAuthorizer
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
    """A ROUTER behind an authorizer that goes by the keys of a node; what changes is noted."""
    authorizer, changes = CurveAuthorizer(name, Keyring(folder, name)), []
    keeps = (authorizer, AcceptLimiter(1000.0))
    keeper = Authenticator(name, context, keeps, SystemClock(), lambda: changes.append(1))
    keeper.start()
    try:
        with serving_socket(context, endpoint, authorizer) as router:
            yield types.SimpleNamespace(
                router=router, authorizer=authorizer, keeper=keeper, changes=changes
            )
    finally:
        assert keeper.stop(5.0)
