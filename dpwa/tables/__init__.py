"""Tables that all workers share. The nodes themselves hold the shards of a table."""
