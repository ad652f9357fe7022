"""The swarm of the papers' benchmarks, for the laws of algorithms: rounds in lockstep on arrays."""

import importlib.util
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "benchmarks" / "papers" / "swarm.py"
_spec = importlib.util.spec_from_file_location("support.swarm_of_papers", FILE)
_module = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

LONG_S, Swarm, SwarmSettings = _module.LONG_S, _module.Swarm, _module.SwarmSettings
