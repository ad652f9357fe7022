"""Run all reproductions. With --markdown, print the tables of docs/papers.md."""

from __future__ import annotations

import epidemic
import exponential_graph
import gosgd
import gossip_at_scale
import lsgd
import moshpit
import noloco
import sgp
from claims import main

PAPERS = [
    script.PAPER
    for script in (gossip_at_scale, gosgd, lsgd, sgp, moshpit, noloco, exponential_graph, epidemic)
]

if __name__ == "__main__":
    main(PAPERS, __doc__)
