"""All that takes too long for every change, one after the other; how each ended, at the end.

    ./scripts/test --long                       # all: about two hours
    ./scripts/test --long slow quiet            # some parts

Nothing else should run beside it, as some parts measure seconds. What a part prints is in
build/long/PART.txt. The exit status is 1 if any has failed, or has taken longer than it may.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from dpwa.testing import namespaces_missing

ROOT = Path(__file__).parents[1]
SAID = ROOT / "build" / "long"
PYTEST = ("-m", "pytest", "-q")
CAMPAIGNS = "tests/campaigns/"

PARTS = {  # arguments of Python, and the most minutes
    "slow": ((*PYTEST, "-m", "slow and not timed", "--ignore=tests/security", "-n", "2"), 60),
    "security": ((*PYTEST, "-m", "slow", "tests/security", "-s"), 30),
    "quiet": ((*PYTEST, "--quiet-machine", "-m", "timed"), 40),
    "mutants": (("tests/mutants.py",), 30),
    "virtual": ((f"{CAMPAIGNS}virtual.py", "all", "--seeds", "0:300", "-j", "2"), 20),
    "fuzz": (("tests/wire/fuzz_decoder.py", "300", "1"), 10),
    "partition": ((f"{CAMPAIGNS}partition.py",), 5),
    "seen": ((f"{CAMPAIGNS}seen_once.py",), 10),
    "interrupts": ((f"{CAMPAIGNS}interrupts.py", "random"), 20),
    "moments": ((f"{CAMPAIGNS}interrupts.py", "every"), 20),
    "loops": ((f"{CAMPAIGNS}loops.py",), 20),
    "pairs": ((f"{CAMPAIGNS}pairs.py",), 50),
    "triples": ((f"{CAMPAIGNS}pairs.py", "--random", "300"), 30),
    "soak": ((f"{CAMPAIGNS}soak.py",), 40),
}
NEED_NAMESPACES = {"partition"}


def run(name):
    """Run a part to its end, or to that of its time; return how it ended, and its last line."""
    if name in NEED_NAMESPACES and (missing := namespaces_missing()):
        return "skipped", missing
    arguments, minutes = PARTS[name]
    with (SAID / f"{name}.txt").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            status = f"longer than {minutes} min"
        finally:
            with suppress(ProcessLookupError):  # none of it is left, as it should be
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = [line.strip(" =\n") for line in said if line.strip(" =\n")]
    return "holds" if status == 0 else f"FAILED ({status})", lines[-1] if lines else ""


def main():
    """Run parts one after the other; exit with 1 if any has failed."""
    parser = argparse.ArgumentParser(prog="./scripts/test --long", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := sorted(set(chosen) - PARTS.keys()):
        parser.error(f"no part is named {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    SAID.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in chosen:
        print(f"{name} (at most {PARTS[name][1]} min)", file=sys.stderr, flush=True)
        began = time.monotonic()
        ending, last = run(name)
        minutes = (time.monotonic() - began) / 60
        rows.append(f"| `{name}` | {ending} | {minutes:.1f} min | {last.replace('|', '/')[:110]} |")
    print(f"\n{datetime.now(timezone.utc):%d %B %Y}, {os.cpu_count()} cores:\n")
    print("| part | | took | its last line |\n|---|---|---|---|", *rows, sep="\n")
    sys.exit(any("| FAILED" in row for row in rows))


if __name__ == "__main__":
    main()
