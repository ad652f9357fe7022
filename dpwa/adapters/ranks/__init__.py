"""Several processes that hold one model together: the ranks of a process group."""
