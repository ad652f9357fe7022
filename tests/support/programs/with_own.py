"""with_own.py hosts FILE PROGRAM ARGUMENTS...: be another program, to which FILE is /etc/hosts.

with_own.py shm MOUNT_OPTIONS PROGRAM ARGUMENTS...: be one that has a /dev/shm of its own.
"""

import ctypes
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

CLONE_NEWNS = 0x20000  # of <sched.h>

what, given, program, *arguments = sys.argv[1:]
if what == "hosts":
    switch = Path(given).with_name("nsswitch.conf")
    switch.write_text("hosts: files\n")
    mounts = [("--bind", given, "/etc/hosts"), ("--bind", str(switch), "/etc/nsswitch.conf")]
else:
    mounts = [("-t", "tmpfs", "-o", given, "none", "/dev/shm")]
sys.argv = [str(Path(__file__).parent / program), *arguments]
if os.geteuid() == 0 and ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:  # no new interpreter
    for mount in [("--make-rprivate", "/"), *mounts]:
        subprocess.run(["mount", *mount], check=True)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()
then = [
    *(["mount", *mount] for mount in mounts),
    ["exec", sys.executable, "-W", "error", *sys.argv],
]
shell = ["sh", "-c", " && ".join(map(shlex.join, then))]
os.execvp("unshare", ["unshare", "--mount", "--map-root-user", *shell])
