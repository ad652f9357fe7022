"""The dashboard: a web page that shows a run, and its server."""
