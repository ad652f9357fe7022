"""`algorithm: together`: a node waits to be let in, while others wait for it in other calls."""

import json

from support.launched import run_nodes
from support.processes import PROGRAMS


def test_who_was_late_once_holds_up_no_collective_and_comes_back():
    said = run_nodes(PROGRAMS / "late_before_collectives.py", 3)
    told = [json.loads(each.splitlines()[-1]) for each in said]
    for each in told:
        assert all(held_up_s < 4.0 for held_up_s in each["held_up_s"].values()), told
    assert len({each["digest"] for each in told}) == 1
