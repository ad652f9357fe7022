"""The state of a training: how it comes to nodes that join late, and to disk and back."""
