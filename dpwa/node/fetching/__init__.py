"""The requests of a node: the TxThread, its connections, and the fetches over them."""
