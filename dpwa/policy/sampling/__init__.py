"""Handing out a data set: its ranges, who holds a lease of which, and what is acknowledged."""
