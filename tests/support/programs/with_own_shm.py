"""with_own_shm.py MOUNT_OPTIONS PROGRAM ARGUMENTS...: be another program, with its own /dev/shm."""

import ctypes
import os
import runpy
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000  # of <sched.h>

options, program, *arguments = sys.argv[1:]
if os.geteuid() == 0 and ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:  # no new interpreter
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", "/dev/shm"], check=True)
    sys.argv = [str(Path(__file__).with_name(program)), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
unshare = ["unshare", "--mount", "--map-root-user"]
mount = 'mount -t tmpfs -o "$0" none /dev/shm && exec "$@"'
python = [sys.executable, "-W", "error", str(Path(__file__).with_name(program))]
os.execvp("unshare", [*unshare, "sh", "-c", mount, options, *python, *arguments])
