"""Adapters: the gossip for the models of a training framework."""
