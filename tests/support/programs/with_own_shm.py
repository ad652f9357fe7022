"""Become another program, which has a /dev/shm of its own; nobody else sees it.

Usage: with_own_shm.py MOUNT_OPTIONS PROGRAM ARGUMENTS...
"""

import os
import sys
from pathlib import Path

options, program, *arguments = sys.argv[1:]
unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
mount = 'mount -t tmpfs -o "$0" none /dev/shm && exec "$@"'
python = [sys.executable, "-W", "error", str(Path(__file__).with_name(program))]
os.execvp("unshare", [*unshare, "sh", "-c", mount, options, *python, *arguments])
