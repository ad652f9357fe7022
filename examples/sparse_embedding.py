"""Train word vectors in a shared table. Each step reads and changes only a few rows of the table.

Run: dpwa launch -n 4 -- python examples/sparse_embedding.py

The vocabulary has 5,000 words in 50 topics. The words of a sentence are of one topic. Each worker
trains skip-gram with negative samples on sentences of its own. A step gets only the rows of its
words, and adds to only these rows. At the end, words of one topic have similar vectors.
"""

import os

import numpy as np

import dpwa.multiverso as mv

WORDS, TOPICS, SIZE = 5_000, 50, 16
STEPS, SENTENCES, NEGATIVES, LEARNING_RATE = 150, 200, 4, 0.1
PER_TOPIC = WORDS // TOPICS

if "DPWA_NAME" not in os.environ:
    raise SystemExit("run it with: dpwa launch -n 4 -- python examples/sparse_embedding.py")


def pairs(rng):
    """Return words (n,), a partner of each from its sentence (n,), and random words (n, 4)."""
    topics = rng.integers(TOPICS, size=(SENTENCES, 1))
    sentences = topics * PER_TOPIC + rng.integers(PER_TOPIC, size=(SENTENCES, 8))
    words, partners = sentences[:, :4].reshape(-1), sentences[:, 4:].reshape(-1)
    return words, partners, rng.integers(WORDS, size=(len(words), NEGATIVES))


def step(table, rng):
    """Take one step of stochastic gradient descent on a batch."""
    words, partners, negatives = pairs(rng)
    others = np.column_stack([partners, negatives])  # (n, 5)
    wanted = np.unique(np.concatenate([words, others.reshape(-1)]))
    rows = table.get(wanted)
    word = rows[np.searchsorted(wanted, words)]  # (n, 16)
    other = rows[np.searchsorted(wanted, others)]  # (n, 5, 16)
    scores = 1 / (1 + np.exp(-np.einsum("ns,nos->no", word, other)))
    scores[:, 0] -= 1  # the target is 1 for a partner, and 0 for a random word
    by_word = np.einsum("no,nos->ns", scores, other)
    by_other = scores[:, :, None] * word[:, None, :]
    ids = np.concatenate([words, others.reshape(-1)])  # the table adds all rows of a repeated id
    table.add(LEARNING_RATE * np.concatenate([by_word, by_other.reshape(-1, SIZE)]), ids)


mv.init()
first = np.random.default_rng(0).normal(0, 0.3, (WORDS, SIZE))
table = mv.MatrixTableHandler(WORDS, SIZE, first, updater="sgd")
mv.barrier()
rng = np.random.default_rng(1 + mv.worker_id())
for _ in range(STEPS):
    step(table, rng)
mv.barrier()
vectors = table.get()
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
sample = np.random.default_rng(2).choice(WORDS, 500, replace=False)
nearest = (vectors[sample] @ vectors.T).argsort(axis=1)[:, -2]  # the last is the word itself
share = (nearest // PER_TOPIC == sample // PER_TOPIC).mean()
print(f"worker {mv.worker_id()}: the nearest word is of the same topic in {share:.0%} of the cases")
mv.shutdown()
