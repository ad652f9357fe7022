"""`dpwa plan`, which computes the cost of a round of gossip before a run."""
