"""What the campaigns in virtual time do with one seed each; they use `tests/support`."""

import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[2])
if TESTS not in sys.path:
    sys.path.append(TESTS)
