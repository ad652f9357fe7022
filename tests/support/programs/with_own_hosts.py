"""Become another program, to which a file is /etc/hosts, and all that knows names of hosts.

Usage: with_own_hosts.py FILE PROGRAM ARGUMENTS...
"""

import os
import sys
from pathlib import Path

hosts, program, *arguments = sys.argv[1:]
switch = Path(hosts).with_name("nsswitch.conf")
switch.write_text("hosts: files\n")
unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
mounts = (
    'mount --bind "$0" /etc/hosts && mount --bind "$1" /etc/nsswitch.conf && shift && exec "$@"'
)
python = [sys.executable, "-W", "error", str(Path(__file__).parent / program)]
os.execvp("unshare", [*unshare, "sh", "-c", mounts, hosts, str(switch), *python, *arguments])
