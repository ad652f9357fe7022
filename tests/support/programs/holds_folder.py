"""holds_folder.py FOLDER: keeps the checkpoints of w1 there, and forks a child that outlives it."""

import os
import sys
import time
from pathlib import Path

from dpwa.state.checkpoints import CheckpointWriter

writer = CheckpointWriter(Path(sys.argv[1]), "w1", keep=2)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(150.0)
