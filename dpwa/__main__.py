"""`python -m dpwa`: the same as the command `dpwa`."""

from __future__ import annotations

from dpwa.cli.main import main

if __name__ == "__main__":
    main()
