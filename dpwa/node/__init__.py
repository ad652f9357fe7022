"""One node: the thread that serves snapshots, the thread that fetches them, and what ties them."""
