"""A new interpreter for `-c CODE`, in which torch is imported already: it is forked.

Usage: forked_python.py OPTION... CODE

It has the standard streams, the environment and the folder of this process, which ends when it has.
"""

import json
import os
import socket
import sys
from pathlib import Path

import fork_server

PROGRAM = str(Path(__file__).with_name("programs") / "given_code.py")

request = {"argv": [PROGRAM, sys.argv[-1]], "env": dict(os.environ), "cwd": str(Path.cwd())}
address = json.loads(os.environ["TESTS_FORK_SERVERS"])["torch"]
with fork_server.connected(address) as channel:
    socket.send_fds(channel, [json.dumps(request).encode()], [0, 1, 2])
    for stream in (0, 1):
        os.close(stream)
    kind = ""
    while kind != "ended":
        kind, _, *code = json.loads(channel.recv(fork_server.MAX_PACKET_BYTES))
os._exit(code[0] % 256)
