"""Tables shared by all workers, cut into shards over the nodes themselves."""
