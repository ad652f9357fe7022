"""Train a logistic regression on digits in a shared table, with the interface of Multiverso.

Run: dpwa launch -n 4 -- python examples/logistic_regression.py
     dpwa launch -n 4 -- python examples/logistic_regression.py --sync

Each worker has its own part of the digits. By default, a worker adds gradients and reads the newest
weights at any time. With --sync, all workers take each step together, and read equal weights.
"""

import argparse
import os

import numpy as np

import dpwa.multiverso as mv
from dpwa.demo.data import label_skewed_shards, load_digits

EPOCHS, BATCH, LEARNING_RATE = 10, 32, 0.1
PIXELS, CLASSES = 64, 10

parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
parser.add_argument("--sync", action="store_true", help="take each step with all workers")
is_sync = parser.parse_args().sync
if "DPWA_NAME" not in os.environ:
    raise SystemExit("run it with: dpwa launch -n 4 -- python examples/logistic_regression.py")


def probabilities(weights, images):
    """Return the probability of each class, shape (n, 10), for images of shape (n, 64)."""
    scores = images @ weights[:PIXELS] + weights[PIXELS]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def gradient(weights, images, labels):
    """Return the gradient of the mean cross-entropy, shape (65, 10). The last row is the bias."""
    errors = probabilities(weights, images) - np.eye(CLASSES, dtype=np.float32)[labels]
    return np.vstack([images.T @ errors, errors.sum(axis=0)]) / len(labels)


mv.init(sync=is_sync)
train, test = load_digits()
shards = label_skewed_shards(train.labels, mv.workers_num(), seed=0, shared_fraction=1.0)
shard = train.subset(shards[mv.worker_id()])
# The updater `sgd` subtracts each addition from the table. Each worker holds some of the rows.
table = mv.MatrixTableHandler(PIXELS + 1, CLASSES, updater="sgd")
mv.barrier()
rng = np.random.default_rng(mv.worker_id())
batches = min(len(indices) for indices in shards) // BATCH  # --sync needs equal numbers of steps
for _ in range(EPOCHS):
    order = rng.permutation(len(shard.labels))
    for chosen in np.array_split(order, batches):
        found = gradient(table.get(), shard.images[chosen], shard.labels[chosen])
        table.add(LEARNING_RATE * found)
mv.barrier()  # after this barrier, the table contains the additions of all workers
guesses = probabilities(table.get(), test.images).argmax(axis=1)
accuracy = (guesses == test.labels).mean()
print(f"worker {mv.worker_id()} of {mv.workers_num()}: accuracy {accuracy:.3f} on all digits")
mv.shutdown()
