"""Gossip within the training loops of other libraries, each of which is an extra of its own."""
