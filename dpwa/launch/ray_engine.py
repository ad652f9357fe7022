"""Nodes in actors of Ray, on the machines of its cluster.

Ray finds room, tells the nodes' addresses before they start, carries what they print, and starts
an actor anew that has died. The nodes themselves do not know of it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpwa.clock import Clock, Deadline, SystemClock
from dpwa.errors import UserError
from dpwa.launch.engine import Event, NodeEnded, Printed
from dpwa.launch.ray_node import RayPlace
from dpwa.launch.ray_places import Resources, last_line, new_actor
from dpwa.launch.spec import LaunchSpec

ACTOR_POLL_S = 0.25  # how long an actor waits for output before it answers; a signal waits as well
KILL_GRACE_S = 3.0  # for an actor to kill its node, before it is killed itself
CLOSE_GRACE_S = 5.0


class RayEngine:
    """Starts each node of a spec in its actor.

    A node whose actor, or its worker process, has died ends by SIGKILL, as its process does. When
    it is started again it gets a new actor, on the same machine: its peers know that address.

    Args:
        spec: what to run.
        placed: actor and place of each node, see `place_actors`.
        resources: of each node, for new actors.
        clock: for the time that actors have to end.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        placed: Mapping[str, tuple[Any, RayPlace]],
        resources: Resources,
        clock: Clock | None = None,
    ) -> None:
        self._spec = replace(spec, world=spec.names)
        self._config = spec.config_path.read_text(encoding="utf-8")
        self._folder = str(Path.cwd())
        self._actors = {name: actor for name, (actor, _) in placed.items()}
        self._machines = {name: place.machine for name, (_, place) in placed.items()}
        self._resources = resources
        self._clock = SystemClock() if clock is None else clock
        self._asked: dict[Any, str] = {}  # one call of each node that runs is under way
        self._starting: set[str] = set()
        self._kill: Deadline | None = None

    @property
    def running(self) -> Collection[str]:
        """Names of the nodes that run, or are being started."""
        return set(self._asked.values())

    def start(self, node: str) -> None:
        """Start a node, in a new actor if it has lost its own."""
        actor = self._actors.get(node)
        if actor is None:
            actor = self._actors[node] = new_actor(self._resources, self._machines[node])
        self._starting.add(node)
        spec = replace(self._spec, names=[node])
        self._asked[actor.start.remote(spec, self._config, self._folder)] = node

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes; actors that do not answer to SIGKILL are killed."""
        for node in self.running:
            self._actors[node].send.remote(int(number))
        if number == signal.SIGKILL:
            self._kill = Deadline(self._clock, KILL_GRACE_S)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what one node has to tell."""
        import ray

        if self._kill is not None and self._kill.expired():
            return self._kill_actors()
        if not self._asked:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout_s)
        return [event for ref in ready for event in self._answer(ref, self._asked.pop(ref))]

    def close(self) -> None:
        """Let the actors clean up, and end them."""
        import ray

        closed = [actor.close.remote() for actor in self._actors.values()]
        if closed:
            ray.wait(closed, num_returns=len(closed), timeout=CLOSE_GRACE_S)
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()

    def _answer(self, ref: Any, node: str) -> list[Event]:
        from ray import exceptions, get

        try:
            events = list(get(ref))
        except exceptions.ActorUnavailableError as error:  # it may answer again
            if node in self._starting:  # but whether it has heard of this, nobody knows
                return self._gone(node, error)
            time.sleep(ACTOR_POLL_S)
            events = []
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            return self._gone(node, error)
        self._starting.discard(node)
        if not any(isinstance(event, NodeEnded) for event in events):
            self._asked[self._actors[node].poll.remote(ACTOR_POLL_S)] = node
        return events

    def _gone(self, node: str, error: Exception) -> list[Event]:
        import ray

        ray.kill(self._actors.pop(node))
        notice = f"dpwa launch: the Ray worker of {node} is gone: {_reason(error)}"
        return [Printed(node, "stderr", [notice]), NodeEnded(node, -signal.SIGKILL)]

    def _kill_actors(self) -> list[Event]:
        import ray

        nodes = self.running
        for node in nodes:
            ray.kill(self._actors.pop(node))
        self._asked.clear()
        return [NodeEnded(node, -signal.SIGKILL) for node in nodes]


def _reason(error: Exception) -> str:
    """Return what Ray says of a dead actor, without its advice."""
    lines = [line for line in str(error).splitlines() if line.startswith("The actor")]
    return " ".join(lines[-1].split(". ")[:1]) if lines else last_line(error)
