"""What `dpwa bench` measures, one file for each kind."""
