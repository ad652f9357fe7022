"""Several processes that hold one model together, as the ranks of a process group."""
