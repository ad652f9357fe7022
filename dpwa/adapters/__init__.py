"""Adapters, with which nodes exchange and average the models of a training framework."""
