"""Checkpoints of a node on disk. After a crash, the last complete checkpoint still exists.

    w1-000004-2000.safetensors              the model, in the format of safetensors
    w1-000004-2000.optimizer.safetensors    the state of the optimizer, if there is one
    w1-000004-2000.json                     clock, numbers, sizes and digests, written last

The first number counts checkpoints, the second number counts updates. Each file is written under a
temporary name, flushed to the disk and renamed. Without the last file, the other files are ignored.
The JSON has the CRC-32 of each 4 MiB of the other files (4.2 GB/s on one core; BLAKE2b: 0.9), and
its own BLAKE2b digest. In format 1, it had only the sum of the words of each file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dpwa import fault_points
from dpwa.data.checksum import checksum
from dpwa.data.layout import Layout
from dpwa.data.segments import ByteArray
from dpwa.errors import DpwaError
from dpwa.files import flush_names, free_lock, open_regular, take_lock, written
from dpwa.lifecycle import Closeable
from dpwa.state.safetensors_image import State, StatePart
from dpwa.types import MAX_CLOCK, JsonObject
from dpwa.wire import limits
from dpwa.wire.messages import printable

log = logging.getLogger("dpwa.state")

FORMAT = 2
_PIECE_BYTES = 4 << 20
_DIGEST_BYTES = 16
_MAX_RECORD_BYTES = 64 << 20
_MAX_HOLDER = 200  # maximum length of the text about the process that locks a folder
_OPTIMIZER = "optimizer"
_SUFFIX = ".safetensors"
_RECORD = ".json"


class BrokenCheckpointError(DpwaError):
    """A checkpoint is incomplete or damaged. It is never raised into a training loop."""


class FolderInUseError(DpwaError):
    """A different process uses this node's checkpoints. It is never raised into a training loop."""


@dataclass(frozen=True)
class SavedPart:
    """A part of a state that was read from disk. See `StatePart`."""

    image: ByteArray
    numbers: bytes
    fingerprint: bytes  # the fingerprint of its kind
    descriptions: list[str]  # of the tensors of its kind; `count` is their number without a limit
    count: int

    def difference(self, kind: Layout) -> str:
        """Return the first difference between the saved tensors and the layout `kind`, or ""."""
        if self.fingerprint == kind.fingerprint:
            return ""
        return kind.difference(self.descriptions, self.count) or "not in its description"


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint that was read from disk."""

    folder: Path
    name: str  # the common part of the names of its files
    clock: float
    updates: int
    parts: Mapping[str, SavedPart]

    def difference(self, part: str, kind: Layout | None) -> str:
        """Return how a saved part differs from the layout `kind`, or "". `None` fits any part."""
        found = self.parts.get(part)
        if found is None:
            return "the checkpoint does not have this part"
        return "" if kind is None else found.difference(kind)

    def path(self, part: str) -> Path:
        """Return the file of a part, or the checkpoint's JSON file if it does not have the part."""
        return self.folder / (
            _file_of(self.name, part) if part in self.parts else self.name + _RECORD
        )


class CheckpointFolder:
    """The checkpoints of one node in a folder. The folder may have checkpoints of other nodes, too.

    A missing folder is created. At most `keep` checkpoints stay.
    """

    def __init__(self, folder: Path, node: str, keep: int) -> None:
        self._folder = folder
        self._node = node
        self._keep = keep
        self._spared: set[str] = set()
        name = re.escape(node)
        self._stem = re.compile(
            rf"\.?({name}-(\d{{6,}})-\d+)({_RECORD}|{_SUFFIX}|\.{_OPTIMIZER}{_SUFFIX})"
            rf"((\.[0-9a-f]+)?\.tmp)?"
        )

    def write(self, state: State) -> str:
        """Write a new checkpoint, remove surplus checkpoints, and return the name of its files.

        Raises OSError if the checkpoint could not be written. Then no part of it stays.
        """
        self._make_folder()
        name = f"{self._node}-{self._last_number() + 1:06d}-{state.updates}"
        fault_points.reached("checkpoint.begun")
        try:
            for part_name, part in state.parts.items():
                self._put(_file_of(name, part_name), part.image.data)
            self._put(name + _RECORD, _record(state, name))
        except OSError:
            self._remove(name)
            raise
        fault_points.reached("checkpoint.written")
        try:
            self._prune()
        except OSError as error:  # the new checkpoint is complete
            log.warning("%s: old checkpoints cannot be removed (%s) [DPWA-W030]", self._node, error)
        fault_points.reached("checkpoint.pruned")
        return name

    def newest_first(self) -> Iterator[Saved]:
        """Read the complete checkpoints, the newest first. Warn of incomplete and damaged ones."""
        try:
            names = sorted(self._names(), key=self._number, reverse=True)
        except OSError as error:
            text = "%s: the checkpoints cannot be listed (%s) [DPWA-W031]"
            log.warning(text, self._node, error)
            return
        for name in names:
            try:
                yield self._read(name)
            except BrokenCheckpointError as error:
                text = "%s: checkpoint %s is ignored: %s [DPWA-W032]"
                log.warning(text, self._node, name, error.text)
            except (OSError, MemoryError) as error:  # the checkpoint may be good, so it is kept
                text = "%s: checkpoint %s cannot be read (%s) [DPWA-W032]"
                log.warning(text, self._node, name, error)
                self.spare(name)

    def hold(self) -> Callable[[], None]:
        """Lock the checkpoints of this node against other processes. Return the unlock function.

        Raises `FolderInUseError` if a different process has locked them.
        """
        path = self._folder / f".{self._node}.lock"
        try:
            self._make_folder()
            lock = take_lock(path)
        except BlockingIOError:
            holder = ""
            with suppress(OSError):
                holder = printable(path.read_text(errors="replace")[:_MAX_HOLDER])
            raise FolderInUseError(holder) from None
        except OSError:  # `write` reports the reason, or the file system has no locks
            return lambda: None
        with suppress(OSError):  # on a full disk, `write` reports the error
            os.truncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        return partial(free_lock, lock, path)

    def spare(self, name: str) -> None:
        """Keep checkpoint `name` despite newer checkpoints, because its state was not loaded."""
        self._spared.add(name)

    def _make_folder(self) -> None:
        """Create a missing folder, and sync its parent folder to disk, in case of power failure."""
        made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            flush_names(path.parent)

    def _put(self, file: str, data: bytes | memoryview) -> None:
        with written(self._folder / file, is_durable=True) as out:
            out.write(data)

    def _read(self, name: str) -> Saved:
        try:
            with open(self._folder / (name + _RECORD), "rb", opener=open_regular) as file:
                record = json.loads(file.read(_MAX_RECORD_BYTES))
            if record.pop("digest", None) != (None if record["format"] == 1 else _digest(record)):
                raise ValueError(f"the content of {name}{_RECORD} does not match its digest")
            parts = {p: self._read_part(name, p, entry) for p, entry in record["parts"].items()}
            clock, updates = float(record["clock"]), int(record["updates"])
            if not (0 <= clock <= MAX_CLOCK and 0 <= updates <= limits.MAX_STATE_UPDATES):
                raise ValueError(f"clock {clock:g} or updates {updates:.6g} is out of range")
        except (
            FileNotFoundError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise BrokenCheckpointError(reason) from None
        return Saved(self._folder, name, clock, updates, parts)

    def _read_part(self, name: str, part: str, entry: JsonObject) -> SavedPart:
        path = self._folder / _file_of(name, part)
        with open(path, "rb", opener=open_regular) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != entry["nbytes"]:  # before memory is allocated
                raise ValueError(f"{path.name} has {nbytes} bytes, expected {entry['nbytes']}")
            image = np.fromfile(file, np.uint8)
        is_whole = (
            _pieces(image) == entry["crc32"]
            if "crc32" in entry
            else checksum(image) == entry["checksum"]
        )
        if not is_whole:
            raise ValueError(f"the content of {path.name} does not match its checksum")
        kind = entry["kind"]
        return SavedPart(
            image,
            bytes.fromhex(entry["numbers"]),
            bytes.fromhex(kind["fingerprint"]),
            [str(text) for text in kind["tensors"]],
            len(kind["tensors"]),
        )

    def _prune(self) -> None:
        own = [name for name in self._names() if name not in self._spared]
        kept = {*sorted(own, key=self._number)[-self._keep :], *self._spared}
        for file, name in self._files():
            if name not in kept or file.endswith(".tmp"):
                (self._folder / file).unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        for file, owner in self._files():
            if owner == name:
                (self._folder / file).unlink(missing_ok=True)

    def _files(self) -> list[tuple[str, str]]:
        """Return this node's files and the checkpoint of each file. Record files come first."""
        if not self._folder.exists():
            return []
        found = [self._stem.fullmatch(path.name) for path in self._folder.iterdir()]
        files = [(match[0], match[1]) for match in found if match]
        return sorted(files, key=lambda file: not file[0].endswith(_RECORD))

    def _names(self) -> list[str]:
        return [name for file, name in self._files() if file == name + _RECORD]

    def _number(self, name: str) -> int:
        return int(name.rsplit("-", 2)[1])

    def _last_number(self) -> int:
        return max((self._number(name) for _, name in self._files()), default=0)


def _file_of(name: str, part: str) -> str:
    return name + (f".{part}" if part == _OPTIMIZER else "") + _SUFFIX


def _record(state: State, name: str) -> bytes:
    record: JsonObject = {
        "format": FORMAT,
        "name": name,
        "clock": state.clock,
        "updates": state.updates,
        "parts": {part_name: _entry(part) for part_name, part in state.parts.items()},
    }
    return json.dumps({**record, "digest": _digest(record)}, indent=1).encode()


def _digest(record: JsonObject) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _entry(part: StatePart) -> JsonObject:
    return {
        "nbytes": part.image.nbytes,
        "crc32": _pieces(part.image),
        "numbers": part.numbers.hex(),
        "kind": {
            "fingerprint": part.kind.fingerprint.hex(),
            "tensors": list(part.kind.descriptions),
        },
    }


def _pieces(image: ByteArray) -> list[int]:
    starts = range(0, image.nbytes, _PIECE_BYTES)
    return [zlib.crc32(image[start : start + _PIECE_BYTES].data) for start in starts]


CLOSE_TIMEOUT_S = 10.0  # maximum time to wait for an unfinished checkpoint


class CheckpointWriter(Closeable):
    """Writes checkpoints on a background thread. Failures are logged and counted, not raised."""

    def __init__(self, path: Path, node: str, keep: int) -> None:
        self.folder = CheckpointFolder(path, node, keep)
        self._end_hold: Callable[[], None] | None = None
        self._path = path
        self._node = node
        self._thread: threading.Thread | None = None
        counts = dict.fromkeys(("written", "skipped", "failed"), 0)
        self._report: JsonObject = {**counts, "newest": "", "problem": ""}
        self.holds()

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def holds(self) -> bool:
        """Return whether this process has locked the checkpoints. If not, try to lock them."""
        if self._end_hold is not None:
            return True
        try:
            self._end_hold, self._report["problem"] = self.folder.hold(), ""
        except FolderInUseError as error:
            problem = f"checkpoint.dir {self._path} is in use by a node of the same name, {error}, "
            problem += "so no checkpoint is read or written until that process ends"
            if problem != self._report["problem"]:
                self._report["problem"] = problem
                text = "%s: %s. Give each run its own folder [DPWA-W094]"
                log.warning(text, self._node, problem)
        return self._end_hold is not None

    def is_free(self) -> bool:
        """Return whether a checkpoint can be written now. If not, count it as skipped."""
        is_free = self.holds() and not self.is_busy
        self._report["skipped"] += not is_free
        return is_free

    def write(self, state: State) -> None:
        """Start to write a state that no longer changes, and return at once."""
        self._thread = threading.Thread(
            target=self._write, args=(state,), name=f"dpwa-checkpoint-{self._node}", daemon=True
        )
        self._thread.start()

    def report(self) -> JsonObject:
        """Return the counts, and `problem`: that with the last state, or with the folder."""
        return {**self._report}

    def close(self) -> None:
        """Wait for an unfinished checkpoint, at most `CLOSE_TIMEOUT_S`."""
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
        if self.is_busy:
            text = "%s: a checkpoint was not written within %g s [DPWA-W035]"
            log.error(text, self._node, CLOSE_TIMEOUT_S)
        end_hold, self._end_hold = self._end_hold, None
        if end_hold is not None:
            end_hold()

    def _write(self, state: State) -> None:
        try:
            self._report |= {"newest": self.folder.write(state), "problem": ""}
            self._report["written"] += 1
        except (OSError, MemoryError) as error:
            problem = f"no checkpoint can be written to {self._path} ({error})"
            self._report |= {"problem": problem, "failed": self._report["failed"] + 1}
            level = logging.WARNING if self._report["failed"] == 1 else logging.DEBUG
            text = "%s: %s. The training continues without this checkpoint [DPWA-W034]"
            log.log(level, text, self._node, problem)
