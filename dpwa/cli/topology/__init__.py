"""`dpwa topology`."""
