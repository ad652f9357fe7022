"""`dpwa bench`: how fast the data plane is, beside what else could be used, in one run."""
