"""A Ray cluster of two machines with one CPU each; prints its address, ends with its input."""

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
try:
    cluster.add_node(num_cpus=1)
    print(cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
