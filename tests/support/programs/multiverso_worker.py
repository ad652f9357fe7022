"""multiverso_worker.py WHAT: what one test of tests/test_multiverso.py is about."""

import json
import sys
import time

import numpy as np

import dpwa.multiverso as mv


def many_adds():
    mv.init()
    rounds, found = 4, []
    vector = mv.ArrayTableHandler(7)
    matrix = mv.MatrixTableHandler(3, 2)
    keys = mv.KVTableHandler()
    for _ in range(rounds):
        vector.add([1, 2, 3, 4, 5, 6, 7])
        vector.add(np.arange(1, 8), sync=True)
        matrix.add([[1, 1], [2, 2]], row_ids=[2, 2])
        keys.add([mv.worker_id(), 10**12], [1, 1])
        mv.barrier()
        found.append(vector.get().tolist())
        mv.barrier()
    return found, matrix.get([0, 2]).tolist(), keys.get([0, 1, 10**12, 5]).tolist()


def who():
    mv.init()
    mv.barrier()
    return [
        mv.workers_num(),
        mv.num_workers(),
        mv.worker_id(),
        mv.server_id(),
        mv.is_master_worker(),
    ]


def first_values():
    mv.init()
    return mv.ArrayTableHandler(3, init_value=[mv.worker_id() + 1.0] * 3).get().tolist()


def in_step():
    mv.init(sync=True)
    rng = np.random.default_rng(mv.worker_id())
    table = mv.MatrixTableHandler(20, 2)
    found = []
    for _ in range(5):
        time.sleep(rng.random() * 0.02)
        table.add(rng.integers(0, 9, (20, 2)))
        found.append(table.get().tolist())
    return found


def shared_variable():
    mv.init()
    variable = mv.SharedVariable(np.full((2, 3), 5.0))
    for _ in range(2):
        variable.value += 1 + mv.worker_id()
        variable.sync()
    mv.barrier()
    found = variable.sync().tolist()
    mv.barrier()
    return found


result = globals()[sys.argv[1]]()
mv.shutdown()
print(json.dumps(result), flush=True)
