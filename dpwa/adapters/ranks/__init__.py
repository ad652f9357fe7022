"""The ranks of a process group that hold one model together."""
