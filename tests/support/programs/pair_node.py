"""pair_node.py ALGORITHM FEATURES NAME NODES SEED: one node of a cell of the campaign of pairs.

Prints the number of each step, and at the end its parameters, its loss and what `finish` says.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2]))
sys.path.append(str(Path(__file__).parents[2] / "campaigns"))

from cases.loops import Board, Training, connected, train
from pairs import plan_of

algorithm, features, name, nodes, seed = sys.argv[1:]
torch.set_num_threads(1)
plan = plan_of(algorithm, tuple(features.split(",")), int(seed))
plan.settings["nodes"] = json.loads(nodes)
plan.extras.append(lambda driver, _: print(json.dumps({"step": driver.step}), flush=True))
index = int(name.removeprefix("w")) - 1
training = Training(plan)
with connected(plan, "", training, index, plan.settings) as driver:
    told = train(plan, training, driver, Board(plan.nodes))
(report,) = told.reports[-1:]
said = {"after": told.after.tolist(), "loss": told.losses[-1], "updates": told.updates}
print(json.dumps({**said, "problem": report.problem, "took_part": report.took_part}), flush=True)
