"""The command `dpwa`, and `python -m dpwa`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit; quietly, too, if Ctrl-C comes before it has begun."""
    try:
        from dpwa.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
