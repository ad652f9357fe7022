"""`dpwa.connect` in actors of a real Ray cluster."""

import json
import subprocess
import sys

from support.extras import needs
from support.processes import PROGRAMS
from support.ray_clusters import ray_cluster
from support.times import PROCESS_HANGS_AFTER_S

pytestmark = needs("ray")


def test_actors_find_each_other_and_one_that_ray_restarts_is_merged_again():
    with ray_cluster():
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "ray_actors.py")],
            capture_output=True, text=True, timeout=PROCESS_HANGS_AFTER_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["machines"] == 2
    first, *others = said["names"]
    assert first == "first"
    assert all(name.startswith("actor-") for name in others)
    assert said["names_after"] == said["names"]
