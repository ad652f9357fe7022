"""Free ports for tests: none is given twice, and no two pytest workers are given the same.

A port that is free when it is looked for may be taken before the node of the test listens. So each
worker has a range of its own, below the one where `dpwa.launch.ports` looks, and begins anywhere in
it: other tests may run on this machine.
"""

import itertools
import os
import random
import socket

import pytest

from dpwa.config.model import NodeConfig
from dpwa.errors import AddressError
from dpwa.launch.ports import require_free_addresses

_LOWEST, _HIGHEST = 10_000, 20_000
_WORKERS = 10
_ROWS, _ROW_PORTS = 8_000, 200
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_MINE = [*range(_LOWEST + _WORKER, _HIGHEST, _WORKERS)]
_ports = itertools.cycle(_MINE)
for _ in range(random.SystemRandom().randrange(len(_MINE))):
    next(_ports)


def free_ports(count):
    """Return so many ports of 127.0.0.1 that nothing listens on."""
    return [next(filter(_is_free, _ports)) for _ in range(count)]


def ports_in_a_row(count):
    """Return the first of so many free ports in a row; each worker looks in a range of its own."""
    lowest = _ROWS + _WORKER * _ROW_PORTS
    while True:
        first = random.SystemRandom().randrange(lowest, lowest + _ROW_PORTS - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def _is_free(port):
    try:
        require_free_addresses([NodeConfig(name="w1", host="127.0.0.1", port=port)])
    except AddressError:
        return False
    return True
