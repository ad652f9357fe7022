"""`dpwa sim`."""
