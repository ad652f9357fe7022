"""The demonstration: nodes with private, one-sided data learn all ten digits by gossip."""
