"""given_code.py CODE: run it as `python -c CODE` does, with warnings as Python shows them."""

import sys
import warnings

warnings.resetwarnings()
del __file__  # processes that are spawned would run it again
exec(sys.argv[1])
