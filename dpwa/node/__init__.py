"""One node, with the thread that serves snapshots and the thread that fetches them."""
