"""Temporary folders of launched runs. Commands find a run by the configuration in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpwa.files import writing, written
from dpwa.launch.ports import free_ports
from dpwa.launch.stopping import interrupted_by_signals
from dpwa.lifecycle import is_locked

if TYPE_CHECKING:
    from dpwa.config import NodeConfig


_PREFIX = "dpwa-launch-"
_FILE = "dpwa.yaml"
_LOCK = "lock"  # a file, because not all file systems show other hosts that a folder is locked
_NEW_S = 60.0  # the process that has made a younger folder may not have locked it yet


@contextlib.contextmanager
def run_folder(config: Path | None = None) -> Iterator[Path]:
    """Make a temporary folder for a run, so that `runs_here` finds the run.

    The folder gets a link to `config`. Without `config`, the caller writes a configuration there.
    Until the block ends, signals that would end this process raise KeyboardInterrupt.
    """
    with interrupted_by_signals() as end, held_folder() as folder:
        try:
            if config is not None:
                (folder / _FILE).symlink_to(config.absolute())
            yield folder
        finally:
            end()


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """Make a temporary folder that is locked as long as this process lives.

    Also remove the folders of processes that were killed.
    """
    for lock_path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # the folder is gone, or has no locks
            is_old = time.time() > lock_path.lstat().st_mtime + _NEW_S
            if is_old and _is_own(lock_path.parent) and not is_locked(lock_path):
                shutil.rmtree(lock_path.parent)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        lock = os.open(Path(folder) / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def _is_own(folder: Path) -> bool:
    return folder.lstat().st_uid == os.getuid()  # others may make such folders, too


@dataclass(frozen=True)
class LaunchedRun:
    """A run that `dpwa launch` has started, and that has not ended."""

    config: Path
    began: float  # seconds since the epoch
    folder: Path  # the working directory of the launcher
    command: str  # the command that each node runs

    @property
    def is_here(self) -> bool:
        return self.folder == Path("/proc/self/cwd").readlink()


def runs_here() -> list[LaunchedRun]:
    """Return this user's runs on this machine. Runs of this folder come first, then newer runs."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_FILE}"):
        launcher = path.parent.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):  # the run has ended, or is no run
            if _is_own(path.parent) and is_locked(path.with_name(_LOCK)):
                began, process = path.parent.stat().st_mtime, Path("/proc") / launcher
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                start = words.index("--") + 1 if "--" in words else 0
                program, *arguments = words[start:-1] or [""]
                command = shlex.join([Path(program).name, *arguments])
                folder = (process / "cwd").readlink()
                found.append(LaunchedRun(path.resolve(), began, folder, command))
    return sorted(found, key=lambda run: (run.is_here, run.began), reverse=True)


def local_config(count: int, folder: Path, *, host: str = "127.0.0.1") -> Path:
    """Write a configuration of nodes w1 to wN on free ports into a folder, and return its path.

    Raises:
        UserError: the machine has too few free ports, or the folder cannot be written.
    """
    from dpwa.config.schema import local_nodes

    return write_config(local_nodes(free_ports(count, host), host), folder)


def write_config(nodes: Sequence[NodeConfig], folder: Path) -> Path:
    """Write a configuration of these nodes, and return its path.

    If the working directory has a `dpwa.yaml` without nodes, its settings are used.
    """
    from dpwa.config.load import load_config, settings_in
    from dpwa.config.schema import config_text

    path, settings = folder / _FILE, Path(_FILE)
    text = config_text(nodes)
    if settings.is_file() and settings_in(settings).isdisjoint(("nodes", "join")):
        listed = {"nodes": [node.to_mapping() for node in nodes]}
        text = load_config(settings.absolute(), overrides=listed, environ={}).to_yaml()
    with writing(path), written(path) as out:
        out.write(text.encode())
    return path
