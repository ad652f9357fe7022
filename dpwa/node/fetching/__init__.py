"""The requests of a node: the TxThread, its connections to peers, and the fetches of snapshots."""
