"""Write the pages of docs/ that are made of the code: api, cli, scenario-keys and settings.md.

    python docs/generate.py                      # writes all of them
    python docs/generate.py --check              # exits with 1 if one is out of date
    python docs/generate.py --check settings.md  # this one only

Each page is what `page()` of its module returns.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

DOCS = Path(__file__).parent
GENERATORS = {
    "api.md": "generate_api",
    "cli.md": "generate_cli",
    "scenario-keys.md": "generate_scenario_keys",
    "settings.md": "generate_settings",
}


def page(name: str) -> str:
    """Return the text of a page."""
    text: str = importlib.import_module(GENERATORS[name]).page()
    return text


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(GENERATORS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.pages) - set(GENERATORS):
        parser.error(f"expected names of {', '.join(GENERATORS)} (got {', '.join(unknown)})")
    stale = []
    for name in arguments.pages or GENERATORS:
        file, text = DOCS / name, page(name)
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        if arguments.check:
            stale.append(name)
        else:
            file.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}: run python docs/generate.py")


if __name__ == "__main__":
    main()
