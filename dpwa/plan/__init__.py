"""What a round of gossip costs before it is run: `dpwa plan`."""
