"""Ctrl-C, again and again: does a node still gossip, publish, meet, and close in time?

    python tests/campaigns/interrupts.py random              # 2,000 at random times, in each case
    python tests/campaigns/interrupts.py random tcp --seed 3 --count 500
    python tests/campaigns/interrupts.py every               # once at each moment of a round

Afterwards 40 of 40 rounds publish and merge, or all meet, or what was added is there; no slot is
lost, no mass of push-sum is more or less, and the node closes within 3 s.
"""

import argparse
import faulthandler
import random
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.interrupt_cases import CASES, interrupt_at_each, interrupt_at_random
from support.times import expect_a_quiet_machine

MAX_DELAY_S = 0.004
STUCK_S = 900.0


def play(how, name, count, seed):
    """Play one case; return what there is to say."""
    began, rng = time.monotonic(), random.Random(seed)
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    case = CASES[name]()
    if how == "random":
        done = interrupt_at_random(case, count, rng, MAX_DELAY_S)
    else:
        done = interrupt_at_each(case, rng, None)
    assert done > 100, f"only {done} interrupts"
    case.check()
    case.close()
    faulthandler.cancel_dump_traceback_later()
    left = [thread.name for thread in threading.enumerate()[1:] if "dpwa" in thread.name]
    assert not left, f"threads that go on: {left}"
    return f"{name}: {done} interrupts, all is well; {time.monotonic() - began:.0f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("how", choices=("random", "every"))
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="by default all")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    expect_a_quiet_machine()  # 3 s are 3 s
    for name in options.cases or CASES:
        print(play(options.how, name, options.count, options.seed), flush=True)


if __name__ == "__main__":
    main()
