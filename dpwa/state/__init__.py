"""The state of a training, for nodes that join late, and for checkpoints on disk."""
