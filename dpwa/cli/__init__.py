"""The command line, a thin shell over the other packages."""
