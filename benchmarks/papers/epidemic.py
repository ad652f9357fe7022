"""Count the rounds until all nodes know the leader, if each node pulls from a peer per round."""

from __future__ import annotations

import random
import statistics

from claims import Claim, Paper, main, verdict

from dpwa.policy.leaders import LossReports

EXPECTED = {16: 6.1, 64: 9.0, 256: 11.5, 1024: 13.8, 4096: 16.1}  # from the exact Markov chain
TRIALS = {16: 400, 64: 150, 256: 40, 1024: 10, 4096: 3}
QUICK_TRIALS = {16: 10, 64: 4}
MAX_REPORTS = 4  # the node's own report, the best two reports, and one random report
LONG_S = 1e9


def reproduce(seed: int, quick: bool) -> list[Claim]:
    trials = QUICK_TRIALS if quick else TRIALS
    rounds = {
        nodes: [rounds_until_known(nodes, f"{seed}/{trial}") for trial in range(count)]
        for nodes, count in trials.items()
    }
    deviation = max(
        1.0, *(statistics.stdev(counts) for counts in rounds.values() if len(counts) > 1)
    )
    means = {nodes: statistics.mean(counts) for nodes, counts in rounds.items()}
    fits = [
        abs(means[nodes] - EXPECTED[nodes]) <= 3 * deviation / len(counts) ** 0.5
        for nodes, counts in rounds.items()
    ]
    sizes = sorted(means)
    return [
        Claim(
            "A message of one node reaches all N in log2 N + O(log log N) rounds of pulling: "
            + ", ".join(f"{EXPECTED[nodes]:g}" for nodes in sizes)
            + f" rounds at N = {', '.join(map(str, sizes))}",
            ", ".join(f"{means[nodes]:.1f}" for nodes in sizes)
            + f" rounds, as means of {', '.join(str(trials[nodes]) for nodes in sizes)} runs",
            verdict(*fits),
            "the sources give the growth. The figures are from the exact Markov chain",
        )
    ]


def rounds_until_known(nodes: int, seed: str) -> int:
    """Return the rounds until all nodes know the leader. Each node pulls from a random peer."""
    rng = random.Random(seed)
    reports = [LossReports(f"n{i}", "", 1, LONG_S) for i in range(nodes)]
    losses = rng.sample(range(nodes), nodes)
    for one, loss in zip(reports, losses, strict=True):
        one.report_own_loss(float(loss), 0, 0.0)
    best = f"n{losses.index(0)}"
    ignorant, rounds = set(range(nodes)) - {losses.index(0)}, 0
    while ignorant:
        now = float(rounds)
        said = [one.select_reports(now, rng, MAX_REPORTS) for one in reports]
        for i, one in enumerate(reports):
            peer = rng.randrange(nodes - 1)
            one.receive_reports(said[peer + (peer >= i)], now)
        rounds += 1
        ignorant = {i for i in ignorant if reports[i].leader(now).node != best}
    return rounds


PAPER = Paper(
    "Epidemic Algorithms for Replicated Database Maintenance (Demers et al., 1987); "
    "Randomized Rumor Spreading (Karp et al., 2000)",
    "PODC 1987, FOCS 2000",
    "The runs use the loss reports that dpwa's nodes forward (`LossReports`), 4 in a message.",
    reproduce,
)

if __name__ == "__main__":
    main([PAPER], __doc__)
