"""Lines that data, agreement and training depend on, each made wrong: does a test near it fail?

    python tests/mutants.py                 # all of them, in two processes: about 6 minutes
    python tests/mutants.py lease vote -j 1 # those of some kinds

A mutant that all tests near it pass survives, and the exit status is 1. A line that has changed is
an error, so write here what it has become; `tests/test_mutants.py` tells of it at once.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HANGS_AFTER_S = 60  # a test
LONGEST_S = 600.0  # all tests near a line
NEEDED = ("dpwa", "tests", "setup.cfg", "pyproject.toml", "docs", "examples", "benchmarks")


class Mutant(NamedTuple):
    """A line, without its indentation, what it becomes, and what pytest is to run."""

    kind: str
    file: str
    line: str
    becomes: str
    near: str

    def text(self, root):
        """Return the file with the mutant."""
        lines = (root / "dpwa" / self.file).read_text(encoding="utf-8").splitlines()
        found = [number for number, line in enumerate(lines) if line.strip() == self.line]
        if len(found) != 1:
            raise LookupError(f"dpwa/{self.file}: {len(found)} lines are `{self.line}`")
        (number,) = found
        lines[number] = lines[number].replace(self.line, self.becomes)
        return "\n".join(lines) + "\n"


MUTANTS = [
    Mutant(
        "lease", "policy/range_leases.py",
        "is_left |= now - self._since > self._lease_s",
        "is_left |= now - self._since > 0.0",
        "tests/policy/test_leases.py",
    ),
    Mutant(
        "lease", "data/snapshot.py",
        "if self.leases or not self.segment.try_claim():",
        "if not self.segment.try_claim():",
        "tests/data/test_snapshot_pool.py",
    ),
    Mutant(
        "lease", "data/snapshot.py",
        "return self._once is not None and self._once()",
        "return self._once is not None",
        "tests/data/test_snapshot_pool.py",
    ),
    Mutant(
        "nonce", "data/peer_memory.py",
        "if header is None or header.nonce != nonce or header.version == 0:",
        "if header is None or header.version == 0:",
        "tests/data/test_shared_memory.py",
    ),
    Mutant(
        "nonce", "data/peer_memory.py",
        "if board[: len(BOARD_MAGIC) + NONCE_BYTES] != BOARD_MAGIC + nonce:",
        "if board[: len(BOARD_MAGIC)] != BOARD_MAGIC:",
        "tests/data/test_shared_memory.py",
    ),
    Mutant(
        "nonce", "data/shared_memory.py",
        "self.nonce = secrets.token_bytes(NONCE_BYTES)",
        "self.nonce = bytes(NONCE_BYTES)",
        "tests/data/test_shared_memory.py",
    ),
    Mutant(
        "incarnation", "collectives/group.py",
        "return (self._life_of(name) or self._lives.setdefault(name, incarnation)) == incarnation",
        "return True",
        "tests/collectives/test_collectives_views.py",
    ),
    Mutant(
        "incarnation", "policy/leaders.py",
        "return kept is None or now >= kept.until or report.incarnation > kept.incarnation",
        "return kept is None or now >= kept.until or report.incarnation >= kept.incarnation",
        "tests/policy/test_leaders.py",
    ),
    Mutant(
        "incarnation", "policy/members/view.py",
        "return own._replace(incarnation=news.incarnation + 1, version=0)",
        "return own._replace(incarnation=news.incarnation, version=0)",
        "tests/policy/test_membership.py",
    ),
    Mutant(
        "incarnation", "policy/members/view.py",
        "if record is None or record.entry.incarnation != incarnation:",
        "if record is None:",
        "tests/policy/test_membership.py",
    ),
    Mutant(
        "checksum", "wire/fetching.py",
        "if checksum(payload) != chunk.checksum:",
        "if False:",
        "tests/wire/test_fetch_and_serve.py",
    ),
    Mutant(
        "checksum", "data/shared_records.py",
        "return checksum(header + posted.record)",
        "return checksum(header)",
        "tests/data/test_boards.py",
    ),
    Mutant(
        "checksum", "data/peer_memory.py",
        "is_whole = before == after and before % 2 == 0 and checksum(news) == total",
        "is_whole = before == after and before % 2 == 0",
        "tests/data/test_shared_memory.py",
    ),
    Mutant(
        "checksum", "state/joining.py",
        "if data.nbytes != room.nbytes or checksum(data) != piece.checksum:",
        "if data.nbytes != room.nbytes:",
        "tests/state/test_late_joiners.py::test_a_corrupt_piece_is_asked_for_again",
    ),
    Mutant(
        "vote", "policy/ballots.py",
        "if voter in self.suspects or voter not in self.members:",
        "if voter not in self.members:",
        "tests/policy/test_ballots.py",
    ),
    Mutant(
        "vote", "policy/ballots.py",
        "and (name not in self._votes or self._votes[name][0] != suspects)",
        "and name not in self._votes",
        "tests/policy/test_ballots.py",
    ),
    Mutant(
        "vote", "policy/ballots.py",
        "holds = ready == stands.keys() and known >= set(self.members)",
        "holds = ready == stands.keys()",
        "tests/policy/test_ballots.py",
    ),
    Mutant(
        "credit", "wire/fetching.py",
        "self._credit = min(self._credit + chunks, limits.MAX_CREDIT_CHUNKS)",
        "self._credit = self._credit + chunks",
        "tests/wire/test_fetch_and_serve.py",
    ),
    Mutant(
        "credit", "wire/fetching.py",
        "self._credit -= 1",
        "self._credit -= 0",
        "tests/wire/test_fetch_and_serve.py",
    ),
    Mutant(
        "credit", "wire/fetching.py",
        "wanted = min(self._next + limits.CREDIT_CHUNKS, len(self.pieces))",
        "wanted = self._next + limits.CREDIT_CHUNKS",
        "tests/wire/test_fetch_and_serve.py",
    ),
    Mutant(
        "deadline", "policy/deadlines.py",
        "return min(ceiling_s, learnt_s * 2.0**self.timeouts)",
        "return learnt_s * 2.0**self.timeouts",
        "tests/policy/test_deadlines.py",
    ),
    Mutant(
        "deadline", "policy/deadlines.py",
        "gain = DEVIATION_GROWTH_GAIN if excess_s > 0 else DEVIATION_DECAY_GAIN",
        "gain = DEVIATION_GROWTH_GAIN",
        "tests/policy/test_deadlines.py",
    ),
    Mutant(
        "deadline", "policy/transactions.py",
        "return self._is_exclusive and now < max(deadlines, default=now)",
        "return self._is_exclusive and bool(deadlines)",
        "tests/policy/test_transactions.py",
    ),
    Mutant(
        "factor", "policy/interpolation.py",
        "return factor * peer_clock + (1.0 - factor) * own_clock",
        "return factor * own_clock + (1.0 - factor) * peer_clock",
        "tests/policy/test_interpolation.py",
    ),
    Mutant(
        "factor", "node/merger.py",
        "clock = mixed_clock(own.clock, arrival.progress.clock, factor * share)",
        "clock = mixed_clock(own.clock, arrival.progress.clock, factor)",
        "tests/node/test_codecs_between_nodes.py::test_a_shard_moves_the_clock_by_its_share",
    ),
    Mutant(
        "divergence", "policy/interpolation.py",
        "return factor * divergence_scale(own.loss, divergence_threshold)",
        "return factor",
        "tests/policy/test_interpolation.py",
    ),
    Mutant(
        "divergence", "node/arrival.py",
        """return "" if is_finite else "the peer's parameters or buffers are not finite\"""",
        'return ""',
        "tests/adapters/test_pytorch.py tests/node/test_peer_faults.py",
    ),
    Mutant(
        "divergence", "node/transactions/manager.py",
        "return own.snapshot.is_finite is False or own.snapshot.progress.loss == math.inf",
        "return own.snapshot.is_finite is False",
        "tests/node/test_transactions_between_nodes.py::"
        "test_a_node_that_has_diverged_gives_its_snapshot_to_nobody",
    ),
    Mutant(
        "version", "policy/leaders.py",
        "is_new = has_aged_out or _newness(news) > _newness(old)",
        "is_new = True",
        "tests/policy/test_leaders.py",
    ),
    Mutant(
        "version", "policy/leaders.py",
        '_newness = attrgetter("incarnation", "version")',
        '_newness = attrgetter("version", "incarnation")',
        "tests/policy/test_leaders.py",
    ),
    Mutant(
        "version", "node/merged_versions.py",
        "return version if shard in shards or WHOLE in shards else 0",
        "return version",
        "tests/node/test_repeats.py",
    ),
    Mutant(
        "acknowledgement", "tables/requests.py",
        "counter = min((confirmed.get(name, 0) for name in holders[1:] or holders), default=0)",
        "counter = max((confirmed.get(name, 0) for name in holders[1:] or holders), default=0)",
        "tests/tables/test_requests.py",
    ),
    Mutant(
        "acknowledgement", "policy/range_leases.py",
        "return self._row(self._own, self._own, is_done=True)",
        "return self._row(self._own, NOBODY, is_done=True)",
        "tests/policy/test_leases.py",
    ),
    Mutant(
        "acknowledgement", "policy/range_leases.py",
        "while self._left and items >= self._left[0][1]:",
        "while self._left and items > 0:",
        "tests/policy/test_leases.py",
    ),
    Mutant(
        "quarantine", "policy/quarantine.py",
        "if 2 * len(self.quarantined(now) | set(convicts)) > peers:",
        "if 2 * len(self.quarantined(now) | set(convicts)) >= peers:",
        "tests/policy/test_quarantine.py",
    ),
    Mutant(
        "quarantine", "policy/quarantine.py",
        "enough = self._strikes_allowed - 1e-9",
        "enough = self._strikes_allowed",
        "tests/policy/test_quarantine.py",
    ),
    Mutant(
        "quarantine", "policy/quarantine.py",
        "duration_s = min(LONGEST_S, self._duration_s * 2.0 ** min(terms, 30))",
        "duration_s = min(LONGEST_S, self._duration_s)",
        "tests/policy/test_quarantine.py",
    ),
    Mutant(
        "fsync", "files.py",
        "os.fsync(out.fileno())",
        "out.fileno()",
        "tests/state/test_damaged_checkpoints.py",
    ),
    Mutant(
        "fsync", "files.py",
        "os.fsync(descriptor)",
        "pass",
        "tests/state/test_damaged_checkpoints.py",
    ),
    Mutant(
        "fsync", "transport/keys.py",
        "os.fsync(file)",
        "pass",
        "tests/cli/test_keys.py",
    ),
]  # fmt: skip


def copied(folder):
    """Return a copy of what the tests need."""
    for name in NEEDED:
        source, target = ROOT / name, folder / name
        folder.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy2(source, target)
    return folder


def tested(root, near):
    """Run tests in a copy; return pytest's exit status, and what it printed."""
    environment = {"PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ("-q", "-x", "-p", "no:cacheprovider", f"--timeout={HANGS_AFTER_S}")
    command = [sys.executable, "-m", "pytest", *options, *near.split()]
    with subprocess.Popen(
        command, cwd=root, env={**os.environ, **environment}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as running:  # fmt: skip
        try:
            said, _ = running.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            return -signal.SIGKILL, ""
    return running.returncode, said


def fate(root, mutant):
    """Put a mutant into a copy and run the tests near it; return what became of it."""
    began, file = time.monotonic(), root / "dpwa" / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.text(root), encoding="utf-8")
    try:
        status, said = tested(root, mutant.near)
    finally:
        file.write_text(original, encoding="utf-8")
    word = {0: "SURVIVES", 1: "killed"}.get(status, f"ERROR (pytest ended with {status})")
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(
        f"{word:9} {time.monotonic() - began:4.0f} s  {mutant.kind}: {mutant.file}: {mutant.line}"
    )
    print(f"            -> {mutant.becomes}   {''.join(failed[:1])[:150]}", flush=True)
    return word


def main():
    """Try mutants; exit with 1 if any survives, or cannot be tried."""
    kinds = list(dict.fromkeys(mutant.kind for mutant in MUTANTS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*kinds, []], help="all by default")
    parser.add_argument("-j", type=int, default=2, help="how many at a time (default: 2)")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if mutant.kind in (given.kinds or kinds)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.j) as pool:
        copies = queue.SimpleQueue()
        for number in range(given.j):
            copies.put(copied(Path(folder, str(number))))

        def attempt(mutant):
            root = copies.get()
            try:
                return fate(root, mutant)
            finally:
                copies.put(root)

        fates = zip(chosen, pool.map(attempt, chosen), strict=True)
        alive = [mutant for mutant, word in fates if word != "killed"]
    print(f"{len(chosen)} mutants, {len(chosen) - len(alive)} killed")
    for mutant in alive:
        print(f"not killed: {mutant.file}: {mutant.line} -> {mutant.becomes}")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
