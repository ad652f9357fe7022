"""The computation of `dpwa plan`, which is the cost of a round of gossip before a run."""
