"""The field of abuse.py with keys; the attackers know the victim's public key."""

import json
import time
from contextlib import contextmanager

from abuse import Field, run
from support.keys import key_folder


class KeyedField(Field):
    """A victim that trains, a peer that gossips with it, and strangers at its gate."""

    def __init__(self, folder, **settings):
        keys = key_folder(folder / "keys", "w1", "w2")
        self.public_key = keys.public_key("w1")
        super().__init__(folder, security="curve", keys=str(keys.path), **settings)

    def attacked(self, attack, seconds, seed=1):
        """Return the figures of so many seconds under an attack."""
        key = self.public_key.encode().hex()
        attacker = run("key_attackers.py", attack, self.port, seconds + 1.5, seed, key)
        try:
            time.sleep(1.5)  # it has to start
            figures = self.watched(seconds)
            output, errors = attacker.communicate(timeout=30)
            assert attacker.returncode == 0, errors
            figures.attacker = json.loads(output)
            return figures
        finally:
            attacker.kill()
            attacker.communicate()


@contextmanager
def keyed_field(folder, **settings):
    """A field of which no process outlives the block."""
    found = KeyedField(folder, **settings)
    try:
        yield found.ready()
    finally:
        found.end()
