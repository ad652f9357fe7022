"""Keys in folders, and sockets behind an authorizer."""

import contextlib
import time
import types

import zmq

from dpwa.transport.authenticator import Authenticator
from dpwa.transport.curve import CurveAuthorizer
from dpwa.transport.keyring import Keyring
from dpwa.transport.keys import KeyFolder
from dpwa.transport.sockets import serving_socket
from support.nodes import again_and_again


def key_folder(path, *names):
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
                folder.allow_key(other, folders[other].public_key(other))
    return folders


@contextlib.contextmanager
def guarded(context, folder, name, endpoint):
    """A ROUTER behind an authorizer that goes by the keys of a node; what changes is noted."""
    authorizer, changes = CurveAuthorizer(name, Keyring(folder, name)), []
    with (
        authenticating(context, authorizer, lambda: changes.append(1)),
        serving_socket(context, endpoint, authorizer) as router,
    ):
        yield types.SimpleNamespace(router=router, authorizer=authorizer, changes=changes)


@contextlib.contextmanager
def authenticating(context, authorizer, changed=lambda: None):
    """An authenticator that answers on a thread of its own; the test keeps its own for itself."""
    authenticator = Authenticator(context, authorizer, changed)
    poller = zmq.Poller()
    for each in authenticator.sockets:
        poller.register(each, zmq.POLLIN)

    def serve():
        poller.poll(20)
        authenticator.process_events()
        authenticator.tick(time.monotonic())

    try:
        with again_and_again(serve):
            yield
    finally:
        authenticator.close()
