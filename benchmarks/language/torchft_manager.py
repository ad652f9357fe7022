"""Make the manager of a replica group of one process, for both programs of torchft.

The timeouts are short. With the defaults of 60 s, a kill would stop all workers for most of a run.
"""

import logging
from datetime import timedelta

import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

GLOO_S, RPC_S, CONNECT_S, QUORUM_S = (timedelta(seconds=seconds) for seconds in (1, 5, 10, 30))
STORE = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # of this group


def manager_of(worker, net, optimizer, *, use_async_quorum):
    """Return a manager that can send the state of the model and the optimizer to a new replica."""

    def state_dict():
        return {"net": net.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state):
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])

    for name in ("torchft.manager", "torchft.local_sgd", "torchft_commits", "torchft_quorums"):
        logging.getLogger(name).setLevel(logging.WARNING)  # because these loggers log each step
    return Manager(
        pg=ProcessGroupGloo(timeout=GLOO_S),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        use_async_quorum=use_async_quorum,
        timeout=RPC_S,
        quorum_timeout=QUORUM_S,
        connect_timeout=CONNECT_S,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=STORE.port,
        replica_id=f"w{worker.index}_",
        hostname="127.0.0.1",
        init_sync=False,  # all workers have equal initial parameters
        quorum_retries=3,
    )
