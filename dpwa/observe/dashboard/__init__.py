"""The dashboard: a web page of a run, and its server."""
