"""Runs nodes in Ray actors, on the machines of a Ray cluster.

Ray finds machines with free resources, reports the addresses of the nodes before they start, and
transfers their output. A new actor replaces an actor that has died. Within the worker process of an
actor, the local engine runs the node's process.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpwa.clock import Deadline, SystemClock
from dpwa.errors import UserError, from_extra
from dpwa.launch.engine import Event, LaunchSpec, NodeEnded, Printed, available_cores
from dpwa.launch.local import LocalEngine
from dpwa.launch.ports import held_ports

ACTOR_POLL_S = 0.25  # an actor waits this long for output before it answers or sends a signal
KILL_GRACE_S = 2.0  # an actor has this time to kill its node, before the actor is killed
CLOSE_GRACE_S = 5.0
PATIENCE_S = 300.0  # for Ray to find free resources, for which it may start machines
SILENCE_S = 5.0  # after this time, a note says that the command waits for Ray
POLL_S = 0.1
CONNECT_PATIENCE_S = 5.0
_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

Resources = Mapping[str, float]


@contextmanager
def connected(needed: Resources) -> Iterator[None]:
    """Connect this process to a Ray cluster until the `with` block ends.

    The cluster is the one at RAY_ADDRESS, or on this machine. If there is none, or the address is
    `local`, Ray is started on this machine until the block ends, with the CPUs that the nodes need.
    """
    with from_extra("ray", "--engine ray needs Ray [DPWA-E071]"):
        import ray
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    named = os.environ.get("RAY_ADDRESS", "").strip()
    is_own = named == "local"
    if not is_own:
        _require_answer(named)
        try:
            ray.init(address=named or "auto", **quiet)
        except ConnectionError as error:
            if named:
                raise UserError(
                    f"found no Ray cluster at {named}: {_last_line(error)} [DPWA-E072]"
                ) from None
            is_own = True
    if is_own:
        cpus = max(len(available_cores()), math.ceil(needed.get("CPU", 0)))
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    try:
        if is_own:
            _require(needed, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def new_actor(resources: Resources, machine: str | None = None) -> Any:
    """Make an actor for a node. Ray starts it on a machine with free resources, or on `machine`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options: dict[str, Any] = {"num_cpus": 0}
    options |= {_OPTIONS[name]: count for name, count in resources.items() if name in _OPTIONS}
    options["resources"] = {n: count for n, count in resources.items() if n not in _OPTIONS}
    if machine is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=False)
    return ray.remote(RayNode).options(**options).remote()


def place_actors(
    names: Sequence[str], resources: Resources, note: Callable[[str], None]
) -> dict[str, tuple[Any, RayPlace]]:
    """Start an actor for each node, on a machine chosen by Ray. Return actors and places by node.

    If all nodes are on one machine, their addresses are on loopback. After a long wait, `note` is
    called with a message.
    """
    import ray

    actors = {name: new_actor(resources) for name in names}
    asked = {name: actor.place.remote() for name, actor in actors.items()}
    began, is_told = time.monotonic(), False
    while True:
        ready, missing = ray.wait(list(asked.values()), num_returns=len(asked), timeout=POLL_S)
        places = _placed(ready)
        if not missing:
            break
        waited_s = time.monotonic() - began
        who = ", ".join(name for name, ref in asked.items() if ref in set(missing))
        what = ", ".join(f"{name}={count:g}" for name, count in resources.items())
        if waited_s > PATIENCE_S:
            raise UserError(
                f"Ray has found no free resources for {who} in {PATIENCE_S:g} s (each node needs "
                f"{what}) [DPWA-E074]"
            )
        if waited_s > SILENCE_S and not is_told:
            note(f"waiting for Ray to find free resources for {who} ({what} for each node)")
            is_told = True
    found = {name: places[ref] for name, ref in asked.items()}
    if len({place.host for place in found.values()}) == 1:
        found = {n: RayPlace(p.machine, "127.0.0.1", p.port) for n, p in found.items()}
    return {name: (actors[name], place) for name, place in found.items()}


def _placed(refs: Sequence[Any]) -> dict[Any, RayPlace]:
    import ray

    try:
        return dict(zip(refs, ray.get(list(refs)), strict=True))
    except ray.exceptions.RayError as error:
        raise UserError(f"Ray cannot start a node: {_last_line(error)} [DPWA-E075]") from None


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _require_answer(address: str) -> None:
    """Raise `UserError` if nothing listens at an address. Ray would try for two minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_PATIENCE_S).close()
    except (OSError, ValueError) as error:
        raise UserError(f"found no Ray cluster at {address}: {error} [DPWA-E072]") from None


def _require(needed: Resources, there: Resources) -> None:
    lacking = [name for name, count in needed.items() if count > there.get(name, 0.0)]
    if lacking:
        what = ", ".join(f"{name}={needed[name]:g}" for name in lacking)
        has = ", ".join(f"{name}={there.get(name, 0.0):g}" for name in lacking)
        raise UserError(
            f"the nodes need {what} in total, but Ray on this machine has {has} [DPWA-E073]"
        )


class RayEngine:
    """Runs each node of a launch in the node's Ray actor from `place_actors`.

    If an actor or its worker process dies, its node is reported as ended by SIGKILL. A restarted
    node gets a new actor on the same machine, because its peers know its address there.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        placed: Mapping[str, tuple[Any, RayPlace]],
        resources: Resources,
    ) -> None:
        self._spec = replace(spec, world=spec.names)
        self._config = spec.config_path.read_text(encoding="utf-8")
        self._folder = str(Path.cwd())
        self._actors = {name: actor for name, (actor, _) in placed.items()}
        self._machines = {name: place.machine for name, (_, place) in placed.items()}
        self._resources = resources
        self._clock = SystemClock()
        self._asked: dict[Any, str] = {}  # the pending call of each running node
        self._starting: set[str] = set()
        self._kill: Deadline | None = None

    @property
    def running(self) -> Collection[str]:
        return set(self._asked.values())

    def start(self, node: str) -> None:
        actor = self._actors.get(node)
        if actor is None:
            actor = self._actors[node] = new_actor(self._resources, self._machines[node])
        self._starting.add(node)
        spec = replace(self._spec, names=[node])
        self._asked[actor.start.remote(spec, self._config, self._folder)] = node

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all nodes. Kill actors that do not answer after SIGKILL."""
        for node in self.running:
            self._actors[node].send.remote(int(number))
        if number == signal.SIGKILL:
            self._kill = Deadline(self._clock, KILL_GRACE_S)

    def poll(self, timeout_s: float) -> list[Event]:
        import ray

        if self._kill is not None and self._kill.expired():
            return self._kill_actors()
        if not self._asked:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=timeout_s)
        return [event for ref in ready for event in self._answer(ref, self._asked.pop(ref))]

    def close(self) -> None:
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
        except exceptions.ActorUnavailableError as error:  # the actor may answer later
            if node in self._starting:  # but it is unknown whether it has received the call
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
        notice = f"dpwa launch: the Ray worker of {node} has died: {_reason(error)}"
        return [Printed(node, "stderr", [notice]), NodeEnded(node, -signal.SIGKILL)]

    def _kill_actors(self) -> list[Event]:
        import ray

        nodes = self.running
        for node in nodes:
            ray.kill(self._actors.pop(node))
        self._asked.clear()
        return [NodeEnded(node, -signal.SIGKILL) for node in nodes]


def _reason(error: Exception) -> str:
    """Return Ray's reason for the death of an actor, without Ray's advice to users."""
    lines = [line for line in str(error).splitlines() if line.startswith("The actor")]
    return " ".join(lines[-1].split(". ")[:1]) if lines else _last_line(error)


@dataclass(frozen=True)
class RayPlace:
    """The place of a node: Ray's id of the machine, its address, and a free port on it."""

    machine: str
    host: str
    port: int


class RayNode:
    """The class of the actors. All its methods run in the main thread of the worker process.

    So on Linux, the process of the node always dies with the worker process.
    """

    def __init__(self) -> None:
        self._held = ExitStack()
        self._files = ExitStack()
        self._engine: LocalEngine | None = None
        self._ended: list[Event] = []

    def place(self) -> RayPlace:
        """Return the place of this actor. The actor holds the port until the node starts."""
        import ray

        (port,) = self._held.enter_context(held_ports(1, "*"))
        machine = ray.get_runtime_context().get_node_id()
        return RayPlace(machine, ray.util.get_node_ip_address(), port)

    def start(self, spec: LaunchSpec, config: str, folder: str) -> Sequence[Event]:
        """Start the only node of a spec with this configuration, in `folder` if it exists here."""
        self.close()
        if Path(folder).is_dir():
            os.chdir(folder)
        made = self._files.enter_context(tempfile.TemporaryDirectory(prefix="dpwa-launch-"))
        path = Path(made, "dpwa.yaml")
        path.write_text(config, encoding="utf-8")
        (name,) = spec.names
        here = LaunchSpec(
            spec.command, path, spec.names, environment=spec.environment, world=spec.world
        )
        engine = LocalEngine(here)
        engine.start(name)
        self._engine = engine
        return []

    def poll(self, timeout_s: float) -> Sequence[Event]:
        if self._ended or self._engine is None:
            return self._ended
        events = self._engine.poll(timeout_s)
        self._ended = [event for event in events if isinstance(event, NodeEnded)]
        return events

    def send(self, number: int) -> None:
        if self._engine is not None:
            self._engine.send(signal.Signals(number))

    def close(self) -> None:
        self._held.close()
        self._files.close()
        self._ended = []
        if self._engine is not None:
            self._engine.close()
            self._engine = None
