"""The dashboard: a web page of a run, and the server that it comes from."""
