"""The demonstration: nodes with private data of few classes learn all digits by gossip."""
