"""The simulator: a run of many nodes in virtual time, on one machine."""
