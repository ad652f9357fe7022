"""The state of a training, for nodes that start late, and for checkpoints on disk."""
