"""Tables that all nodes share, without a server. Each node holds shards of each table."""
