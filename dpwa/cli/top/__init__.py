"""`dpwa top`: all nodes of a run on a terminal, live."""
