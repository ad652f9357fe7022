"""The answers of a node: the RxThread, and its services."""
