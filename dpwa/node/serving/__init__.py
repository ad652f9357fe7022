"""What a node answers: the RxThread, and the services on it."""
