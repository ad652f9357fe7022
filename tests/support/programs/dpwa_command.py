"""`dpwa`, as its entry point runs it."""

from dpwa.cli.main import main

main()
