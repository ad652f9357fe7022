"""The field of abuse.py with keys; the attackers know the victim's public key."""

from abuse import Field, field
from support.keys import key_folder

from dpwa.transport.keys import KeyFolder


class KeyedField(Field):
    """A victim that trains, a peer that gossips with it, and strangers at its gate."""

    attackers = "key_attackers.py"

    def __init__(self, folder, **settings):
        path = folder / "keys"
        keys = KeyFolder(path) if path.exists() else key_folder(path, "w1", "w2")
        self._public_key = keys.public_key("w1")
        super().__init__(folder, security="curve", keys=str(keys.path), **settings)

    @property
    def known(self):
        return self._public_key.encode().hex()


def keyed_field(folder, **settings):
    """A field of which no process outlives the block."""
    return field(folder, KeyedField, **settings)
