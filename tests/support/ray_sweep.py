"""A program for test_sweep.py: the twenty runs on a Ray cluster of two nodes, and what came of them."""

import json
import sys

from fadeout.experiments.run import Run
from fadeout.experiments.sweep import sweep

TWENTY = [Run(epochs=2, method=m, seed=s) for s in range(5) for m in ("auto", "gmp", "one_shot", "dense")]

if __name__ == "__main__":
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
        records = sweep(
            TWENTY, sys.argv[1], jobs=2, backend="ray", address=cluster.address, checkpoint_every=0
        )
        print(json.dumps([nodes, records]))
    finally:
        ray.shutdown()
        cluster.shutdown()
