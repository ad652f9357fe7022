"""The entry point of the command `dpwa`, and of `python -m dpwa`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. An early Ctrl-C ends it without a traceback."""
    try:
        from dpwa.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
