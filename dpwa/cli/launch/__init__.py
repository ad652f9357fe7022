"""`dpwa launch`."""
