"""Which settings fit a budget: the present ones, each one changed alone, and all together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpwa.config import Config
from dpwa.config.clashes import clashes
from dpwa.plan.costs import RoundCost, Setting, cost_of, obeys_probability
from dpwa.plan.payloads import Payloads

CODECS = ("none", "bf16", "int8")  # from the most exact on
SHARES = (0.5, 0.25, 0.1)  # of the parameters in a fetch, and of the rounds with one
SMALL_SHARES = (*SHARES, 0.05, 0.02, 0.01)
MOST_FITS = 3
# Gossip took 1.22 to 1.32 times the steps of averaged gradients with AdamW (docs/algorithms.md).
STEPS_OF_GOSSIP = 1.2

Change = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Budget:
    """What rounds may cost; `None`: no bound."""

    mbps: float | None = None  # payload that a node receives; as much is sent
    gb_per_hour: float | None = None  # the same
    wait_share: float | None = None  # of the time, from 0 to 1

    @property
    def is_given(self) -> bool:
        return self != Budget()


@dataclass(frozen=True)
class Choice:
    """Settings, what they cost, and why they do not fit."""

    changes: Change  # from the present ones
    config: Config  # all of them
    cost: RoundCost
    problems: tuple[str, ...]  # none if they fit

    @property
    def mixed(self) -> float:
        """Mean share of the parameters that a round brings."""
        return self.config.fraction * self.cost.fetches

    def reasons(self) -> list[str]:
        config = self.config
        told = {
            "codec": _CODEC_WORDS.get(config.codec, "a codec of a plugin"),
            "fraction": f"each parameter comes once in {1 / config.fraction:.3g} fetches",
            "fetch_probability": f"{config.fetch_probability:.0%} of the rounds fetch",
            "timeout_ms": "room for the longest fetch",
            "transport": "if all nodes were on one host",
            "algorithm": "fewer steps, where all nodes are equally fast",
        }
        return [f"{key} {value}: {told[key]}" for key, value in self.changes.items()]


_CODEC_WORDS = {
    "none": "every value, exact",
    "fp16": "every value, to 11 bits",
    "bf16": "every value, to 8 bits",
    "int8": "every value, to 1/254 of the largest of its 256",
}


@dataclass
class Choices:
    config: Config  # the present settings
    payloads: Payloads
    setting: Setting
    budget: Budget
    # Settings that the others do not allow, with the reason.
    refused: dict[str, str] = field(default_factory=dict)

    def present(self) -> Choice:
        cost = cost_of(self.config, self.payloads, self.setting)
        problems = list(self._too_much(cost))
        if cost.is_late:
            problems.insert(0, f"fetches bring nothing: timeout_ms must be {cost.timeout_ms}")
        return Choice({}, self.config, cost, tuple(problems))

    def alone(self) -> list[Choice]:
        """Return what each setting would do alone, where the network is used at all."""
        if self.setting.link is None:
            return []
        now = self.config
        found: list[Change] = [{"codec": name} for name in CODECS if name != now.codec]
        found += [{"fraction": share} for share in SHARES if share < now.fraction]
        found += [{"fetch_probability": share} for share in self._rarer(SHARES)]
        choices = [choice for change in found if (choice := self._with(change)) is not None]
        return [*choices, self._on_one_host()]

    def _on_one_host(self) -> Choice:
        """Return what the present settings would cost if all nodes were on one host."""
        cost = cost_of(self.config, self.payloads, replace(self.setting, link=None))
        return Choice({"transport": "shm"}, self.config, cost, tuple(self._too_much(cost)))

    def together(self) -> Choice | None:
        """Return what averaging gradients costs in place of gossip, if it fits and is worth it."""
        change = {"algorithm": "together"}
        config = self.config.model_copy(update=change)
        if self.config.algorithm != "gossip" or any(_clashes(config)):
            return None
        cost = cost_of(config, self.payloads, self.setting)
        is_worth_it = cost.round_s < STEPS_OF_GOSSIP * self.setting.step_s
        fits = is_worth_it and not any(self._too_much(cost))
        return Choice(change, config, cost, ()) if fits else None

    def fitting(self) -> list[Choice]:
        """Return the settings that fit the budget, the best first.

        The more of the parameters a round brings, the better; then the more exact. The present
        settings, if they fit, are the only ones.
        """
        present = self.present()
        if not present.problems:
            return [present]
        fits = [choice for choice in self._all() if not choice.problems]
        return sorted(fits, key=self._rank)[:MOST_FITS]

    def least(self) -> Choice:
        """Return what costs the least, for a budget that nothing fits."""
        return min(self._all(), key=lambda choice: (choice.cost.wait_share, choice.cost.mbps))

    def _rank(self, choice: Choice) -> tuple[float, float, float]:
        exactness = -choice.cost.fetch_bytes / choice.config.fraction
        return -choice.mixed, exactness, choice.cost.wait_share

    def _all(self) -> Iterator[Choice]:
        """Yield all combinations that bring no more than the present settings do."""
        now = self.config
        if self.setting.link is None:
            yield self.present()
            return
        codecs = dict.fromkeys([now.codec, *CODECS])
        fractions = [now.fraction, *(share for share in SMALL_SHARES if share < now.fraction)]
        asks = [now.fetch_probability, *self._rarer(SMALL_SHARES)]
        for codec, fraction, share in itertools.product(codecs, fractions, asks):
            wanted = {"codec": codec, "fraction": fraction, "fetch_probability": share}
            changes = {k: v for k, v in wanted.items() if vars(now)[k] != v}
            if (choice := self._with(changes)) is not None:
                yield choice

    def _rarer(self, shares: Sequence[float]) -> list[float]:
        """Return probabilities of a fetch below the present one, if they have any effect."""
        now = self.config.fetch_probability
        return [share for share in shares if share < now] if obeys_probability(self.config) else []

    def _with(self, changes: Change) -> Choice | None:
        """Return the choice of some changes, with a timeout that is long enough."""
        config = self.config.model_copy(update=dict(changes))
        for setting, message in _clashes(config):
            if setting in changes:
                self.refused.setdefault(setting, message)
                return None
        cost = cost_of(config, self.payloads, self.setting)
        if cost.timeout_ms > config.timeout_ms:
            changes = {**changes, "timeout_ms": cost.timeout_ms}
            config = config.model_copy(update={"timeout_ms": cost.timeout_ms})
            cost = cost_of(config, self.payloads, self.setting)
        return Choice(changes, config, cost, tuple(self._too_much(cost)))

    def _too_much(self, cost: RoundCost) -> Iterator[str]:
        most = self.budget
        if most.wait_share is not None and cost.wait_share > most.wait_share:
            yield f"waits {cost.wait_share:.0%} of the time, more than {100 * most.wait_share:.3g}%"
        if most.mbps is not None and cost.mbps > most.mbps:
            yield f"{cost.mbps:.3g} Mbit/s, more than {most.mbps:g}"
        if most.gb_per_hour is not None and cost.gb_per_hour > most.gb_per_hour:
            yield f"{cost.gb_per_hour:.3g} GB an hour, more than {most.gb_per_hour:g}"


def _clashes(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the settings that the others do not allow, with the reason."""
    nodes = [node.to_mapping() for node in config.nodes]
    links = [link.model_dump() for link in config.links]
    for path, message in clashes(vars(config), nodes, links):
        yield str(path[0]), message
