"""Gossip in the training loops of other libraries. Each library has its own extra of dpwa."""
