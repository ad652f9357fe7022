"""Parameters as bytes: their layout, and the leased snapshots that nodes serve."""
