"""The command `dpwa`, and `python -m dpwa`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C before it has begun ends it quietly."""
    try:
        from dpwa.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
