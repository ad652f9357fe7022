"""Adapters, which gossip the models of a training framework."""
