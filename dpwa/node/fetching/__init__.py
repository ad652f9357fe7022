"""What a node asks: the TxThread, its connections, and the fetches over them."""
