"""Nodes that are killed or stopped in the middle of a collective: real processes.

Whatever happens, those who are left agree, none of them hangs, and who comes back is let in.
"""

import random
import signal
from dataclasses import dataclass

import pytest
from support.collective_processes import collective_processes
from support.nodes import eventually
from support.times import at_most

POINTS = (
    "collective.called",
    "reduce.laid_out",
    "collective.entered",
    "collective.met",
    "collective.exchanged",
    "collective.ready",
    "collective.ended",
)
KINDS = ("barrier", "small", "large", "broadcast small", "broadcast large", "gather")
SIGNALS = ("SIGKILL", "SIGSTOP")
TRANSPORTS = ("auto", "tcp")
GRACE_S = 1.0
STALLED_S = 1.0  # of these processes; 5 s of others
HELD_S = 1.5


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with collective_processes(tmp_path_factory.mktemp("nodes")) as started:
        yield started


@dataclass(frozen=True)
class Fault:
    """A signal that a node sends to itself, or gets.

    Attributes:
        point: where it is; empty: anywhere, it is sent from outside.
        kind: of all collectives around the fault.
        victim: who gets it.
        nth: at which time the point is reached, or after how many collectives it is sent.
    """

    point: str
    signal: str
    kind: str
    transport: str = "auto"
    count: int = 3
    victim: str = "w2"
    nth: int = 2
    timeout_s: float = 1.0

    @property
    def names(self):
        return tuple(f"w{index}" for index in range(1, self.count + 1))

    @property
    def survivors(self):
        return tuple(name for name in self.names if name != self.victim)

    def root(self, step):
        """Who broadcasts: the victim, as long as it is sure to be a member."""
        return self.victim if step == 0 else self.survivors[0]

    def calls(self):
        """All collectives: the last ones are certain to be without the victim."""
        more = 2 if self.point else 60
        kinds = [self.kind] * (self.nth + more) + ["small", "large"]
        return [(kind, step, self.root(step)) for step, kind in enumerate(kinds)]


def assert_right(kind, root, answer, names):
    """Check a result that the members named have contributed to."""
    result = answer["result"]
    if kind == "barrier":
        assert result is None
    elif kind == "gather":
        assert [name for name, _ in result] == list(names)
        assert {step for _, step in result} == {answer["step"]}
    elif kind.startswith("broadcast"):
        assert result == [[root], 1]
    else:
        assert result == [list(names), len(names)]


def play(processes, fault):
    """Let a fault happen, and check what those who are left see of it."""
    with processes.group(fault.count, transport=fault.transport) as group:
        for answers in group.call([("small", 0, "")] * 2).values():
            results = [answer.get("result") for answer in answers]
            assert results == [[list(fault.names), fault.count]] * 2, (fault, answers)
        if fault.point:
            group[fault.victim].arm(fault.point, fault.nth, fault.signal)
        group.begin(fault.calls(), fault.names, fault.timeout_s)
        first = group[fault.survivors[0]]
        told = {first.name: [first.answer() for _ in range(0 if fault.point else fault.nth)]}
        if not fault.point:
            group[fault.victim].signal(getattr(signal, fault.signal))
        for name in fault.survivors:
            told[name] = told.get(name, []) + group[name].answers()
        assert_survivors_agree(fault, told)
        if fault.signal == "SIGSTOP":
            assert_victim_is_told(fault, group)
        else:
            group[fault.victim].wait_until_gone()
            group.start(fault.victim)
        assert_is_let_in(fault, group)


def assert_survivors_agree(fault, told):
    rows = [told[name] for name in fault.survivors]
    assert [len(row) for row in rows] == [len(fault.calls())] * len(rows), told
    failed = 0
    for (kind, _, root), *answers in zip(fault.calls(), *rows, strict=True):
        first = answers[0]
        for answer in answers:
            patience_s = STALLED_S if fault.signal == "SIGSTOP" else 0.0
            most_s = fault.timeout_s + patience_s + GRACE_S
            assert answer["took_s"] <= at_most(most_s), (fault, answer)
            assert answer["members"] == first["members"], (fault, answers)
            for key in ("result", "error", "names"):
                assert answer.get(key) == first.get(key), (fault, answers)
        if "error" in first:
            failed += 1
            assert (first["error"], first["names"]) == ("PeerLost", [fault.victim]), (
                fault,
                answers,
            )
        else:
            here = first["members"] if failed or len(first["members"]) == fault.count else None
            if here is not None:
                assert_right(kind, root, first, here)
    assert failed <= 1, (fault, told)
    assert rows[0][-1]["members"] == list(fault.survivors)


def assert_victim_is_told(fault, group):
    """Go on with one that was stopped: what it got is right, until it is told.

    Votes that it finds on waking may be older than those by which the others went on without it;
    then the collective that it was in has failed for it, too, and it is told in the next.
    """
    group[fault.victim].signal(signal.SIGCONT)
    *before, last = group[fault.victim].answers()
    assert (last["error"], last["names"]) == ("LeftBehindError", [fault.victim]), (fault, last)
    for answer in before:
        if answer.get("error") != "CollectiveTimeoutError":
            kind, _, root = fault.calls()[answer["step"]]
            assert_right(kind, root, answer, fault.names)


def assert_is_let_in(fault, group):
    """Let it call again, and the others until it is there; then everything is as before."""
    group[fault.victim].tell("call", 10.0, ("small", 0, ""))

    def is_there():
        told = group.call([("barrier", 0, "")], fault.survivors)
        assert all("error" not in answers[0] for answers in told.values()), (fault, told)
        return all(answers[0]["members"] == list(fault.names) for answers in told.values())

    eventually(is_there, every_s=0.0)
    told = group.call([("small", 0, "")], fault.survivors)
    told[fault.victim] = group[fault.victim].answers()
    calls = [(kind, step, fault.victim) for step, kind in enumerate(KINDS)]
    for name, answers in group.call(calls).items():
        told[name] += answers
    for answers in told.values():
        assert len(answers) == 1 + len(KINDS)
        for (kind, _, root), answer in zip([("small", 0, ""), *calls], answers, strict=True):
            assert "error" not in answer, (fault, answer)
            assert_right(kind, root, answer, fault.names)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("collective.called", "SIGKILL", "barrier"),
        Fault("collective.entered", "SIGKILL", "large", "tcp", count=4, victim="w1"),
        Fault("collective.met", "SIGSTOP", "large"),
        pytest.param(Fault("reduce.laid_out", "SIGSTOP", "large", "tcp"), marks=pytest.mark.slow),
        Fault("collective.exchanged", "SIGKILL", "broadcast large", victim="w3", nth=1),
        pytest.param(
            Fault("collective.ready", "SIGSTOP", "small", victim="w1"), marks=pytest.mark.slow
        ),
        Fault("collective.ready", "SIGKILL", "gather", "tcp"),
        Fault("", "SIGKILL", "large", "tcp"),
        pytest.param(
            Fault("collective.ended", "SIGKILL", "large", count=2), marks=pytest.mark.slow
        ),
    ],
    ids=lambda fault: f"{fault.point or 'anywhere'}-{fault.signal}-{fault.kind}-{fault.transport}",
)
def test_those_who_are_left_agree_and_who_comes_back_is_let_in(processes, fault):
    play(processes, fault)


def test_who_holds_the_gil_while_another_dies_is_waited_for(processes):
    with processes.group(3, transport="tcp") as group:
        for name in group.names:
            group[name].tell("stall", 5.0)
            group[name].answer()
        group.call([("barrier", 0, "")])
        calls = [("barrier", 0, ""), ("small", 0, "")]
        group.begin(calls, ["w1"], 10.0)
        group["w2"].tell("hold", HELD_S)
        assert group["w2"].answer() == {"holds": True}
        group["w3"].signal(signal.SIGKILL)
        assert group["w2"].answer() == {"held": True}
        group.begin(calls, ["w2"], 10.0)
        for name in ("w1", "w2"):
            failed, after = group[name].answers()
            assert (failed["error"], failed["names"]) == ("PeerLost", ["w3"]), name
            assert after["result"] == [["w1", "w2"], 2], name


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", SIGNALS)
def test_every_fault_point_in_every_collective(processes, name, transport):
    for point in POINTS:
        for kind in KINDS:
            if point != "reduce.laid_out" or kind in ("large", "broadcast large"):
                play(processes, Fault(point, name, kind, transport, timeout_s=2.0))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_faults(processes):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        play(processes, random_fault(rng))


def random_fault(rng):
    count = rng.choice([2, 3, 3, 4, 5])
    points = [point for point in POINTS if point != "reduce.laid_out"]
    return Fault(
        rng.choice([*points, "", "", ""]),
        rng.choice(SIGNALS),
        rng.choice(KINDS),
        rng.choice(TRANSPORTS),
        count,
        f"w{rng.randint(1, count)}",
        rng.randint(1, 4),
    )
