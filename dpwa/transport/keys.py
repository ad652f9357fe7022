"""The keys of nodes, their files, and checks that other users cannot read or replace the files.

    keys/w1.key            the secret key of the node w1; only its owner may read the file
    keys/allowed/w1.pub    the public keys of all nodes that may connect
    keys/allowed/w2.pub

A file has one line with a key, and comments that begin with `#`:

    dpwa-public-key rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7

The name of a file is the name of the node, and each key belongs to one name. All errors are
`UserError`.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from dpwa.config.endpoints import is_label
from dpwa.config.public_keys import key_bytes
from dpwa.errors import UserError
from dpwa.files import open_regular

SECRET_SUFFIX = ".key"  # noqa: S105
PUBLIC_SUFFIX = ".pub"
ALLOWED = "allowed"

_SECRET = "dpwa-secret-key"  # noqa: S105  (the word before the key, not the key)
_PUBLIC = "dpwa-public-key"
_MAX_FILE_BYTES = 4096
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_PUTS_KEYS = "other users can put keys there. Run chmod go-w"
_MAX_STEPS = 1000  # because symbolic links may form a circle


class SecretKey:
    """A secret key in Z85. No message, log, traceback or dump shows it."""

    __slots__ = ("_z85",)

    def __init__(self, z85: bytes) -> None:
        self._z85 = z85

    def reveal(self) -> bytes:
        """Return the key, to pass it to ZeroMQ or to write its file."""
        return self._z85

    def __repr__(self) -> str:
        return "SecretKey(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("a secret key cannot be pickled or copied")


@dataclass(frozen=True)
class KeyPair:
    """Both keys of a node, in Z85."""

    public: str
    secret: SecretKey

    @classmethod
    def new(cls) -> KeyPair:
        """Create a new key pair. Raises `UserError` if libzmq has no CURVE."""
        require_curve()
        while True:
            public, secret = zmq.curve_keypair()
            pair = cls(public.decode(), SecretKey(secret))
            if not public.startswith(b"-"):  # on a command line, it would look like an option
                return pair


def require_curve() -> None:
    if not zmq.has("curve"):
        raise UserError(
            f"`security: curve` needs libzmq with CURVE, but libzmq {zmq.zmq_version()} has no "
            "CURVE. Run pip install --force-reinstall pyzmq, because its wheels have CURVE "
            "[DPWA-E100]"
        )


def fingerprint(public: str) -> str:
    """Return the first 16 hex digits of a public key's SHA-256, for comparing keys by eye."""
    return hashlib.sha256(key_bytes(public) or b"").hexdigest()[:16]


class KeyFolder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.allowed = self.path / ALLOWED

    def secret_file(self, name: str) -> Path:
        return self.path / (name + SECRET_SUFFIX)

    def public_file(self, name: str) -> Path:
        return self.allowed / (name + PUBLIC_SUFFIX)

    def owners(self) -> list[str]:
        """Return the sorted names of the secret keys in this folder."""
        return _names(self.path, SECRET_SUFFIX)

    def names(self) -> list[str]:
        """Return the sorted names of the public keys in this folder."""
        return _names(self.allowed, PUBLIC_SUFFIX)

    def key_pair(self, name: str) -> KeyPair:
        """Read the key pair of a node. Raises `UserError` if other users can read or replace it."""
        path = self.secret_file(name)
        self.require_closed()
        if not path.exists():
            make = f"dpwa keys new {name} --keys {shlex.quote(str(self.path))}"
            raise UserError(
                f"{path}: found no secret key of {name}. Make it with `{make}` [DPWA-E102]"
            )
        secret = _read(path, _SECRET, _OF_OTHERS, "other users can read this key. Run chmod 600")
        public = zmq.curve_public(secret.reveal())
        return KeyPair(public.decode(), secret)

    def public_key(self, name: str) -> str:
        """Read the public key of a node. Raises `UserError` if other users can replace it."""
        return read_public_key(self.public_file(name))

    def require_closed(self) -> None:
        """Raise `UserError` if other users can add keys here, or replace this folder."""
        for path in (self.path, self.allowed):
            if path.exists():
                _require_mode(path, path.stat().st_mode, _WRITTEN_BY_OTHERS, _PUTS_KEYS)
            _require_own(path)

    def require_new(self, name: str) -> None:
        """Raise `UserError` if there are keys of this name. Keys are never overwritten."""
        for path in (self.secret_file(name), self.public_file(name)):
            if path.exists():
                raise _exists(path)

    def create(self, name: str) -> KeyPair:
        self.require_new(name)
        pair = KeyPair.new()
        self._make_folders()
        says = f"# Secret key of the dpwa node {name}. Anyone who can read it can act as {name}.\n"
        text = SecretKey(says.encode() + f"{_SECRET} ".encode() + pair.secret.reveal() + b"\n")
        _write_new(self.secret_file(name), text, 0o600)
        self._write_public(name, pair.public)
        return pair

    def allow_key(self, name: str, public: str) -> None:
        self._make_folders()
        self._write_public(name, public)

    def remove(self, name: str) -> None:
        path = self.public_file(name)
        try:
            path.unlink()
        except OSError as error:
            raise UserError(
                f"{path}: the key cannot be removed ({error.strerror}) [DPWA-E104]"
            ) from None

    def _make_folders(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.allowed.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{error.filename}: the folder cannot be created ({error.strerror}) [DPWA-E105]"
            ) from None
        self.require_closed()

    def _write_public(self, name: str, public: str) -> None:
        text = f"# Public key of the dpwa node {name}.\n{_PUBLIC} {public}\n"
        _write_new(self.public_file(name), SecretKey(text.encode()), 0o644)


def read_public_key(path: Path) -> str:
    """Read a file with a public key. Raises `UserError` if other users can replace it."""
    advice = "other users can replace this key. Run chmod go-w"
    return _read(path, _PUBLIC, _WRITTEN_BY_OTHERS, advice).reveal().decode()


def _names(folder: Path, suffix: str) -> list[str]:
    try:
        files = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"{folder}: the folder cannot be read ({error.strerror}) [DPWA-E103]"
        ) from None
    names = [name.removesuffix(suffix) for name in files if name.endswith(suffix)]
    return sorted(name for name in names if is_label(name))


def _read(path: Path, word: str, forbidden: int, advice: str) -> SecretKey:
    """Read the key in a file. If an error is raised, no variable has the file's contents."""
    try:
        _require_own(path)
        with open(path, "rb", opener=open_regular) as file:
            _require_mode(path, os.fstat(file.fileno()).st_mode, forbidden, advice)
            found = list(_lines(SecretKey(file.read(_MAX_FILE_BYTES))))
    except OSError as error:
        raise UserError(f"{path}: the key cannot be read ({error.strerror}) [DPWA-E103]") from None
    match found:
        case [(kind, SecretKey() as key)] if kind == word:
            return key
    is_secret = word != _SECRET and any(kind == _SECRET for kind, _ in found)
    got = " (got a secret key, which must not be given to others)" if is_secret else ""
    raise UserError(
        f"{path}: expected one line `{word} KEY` with a key of 40 characters{got} [DPWA-E099]"
    )


def _lines(content: SecretKey) -> Iterator[tuple[str, SecretKey | None]]:
    """Yield the first word of each line, and the key after it, or `None` if it is no key."""
    for line in content.reveal().decode("ascii", "replace").splitlines():
        word, _, key = line.strip().partition(" ")
        if word and not word.startswith("#"):
            is_key = key_bytes(key.strip()) is not None
            yield word, SecretKey(key.strip().encode()) if is_key else None


def _require_mode(path: Path, mode: int, forbidden: int, advice: str) -> None:
    if mode & forbidden:
        where = shlex.quote(str(path))
        raise UserError(f"{path}: mode {stat.S_IMODE(mode):04o}, so {advice} {where} [DPWA-E101]")


def _require_own(path: Path) -> None:
    """Raise `UserError` if other users can replace a file, or a folder on the path to it.

    All parts of the path must belong to this user or root, and only they may write to the folders,
    as in sshd's StrictModes. In a sticky folder (/tmp), users can replace only their own files.
    """
    for step, status in _way_to(path):
        if status.st_uid not in (0, os.geteuid()):
            raise UserError(
                f"{step}: mode {stat.S_IMODE(status.st_mode):04o}, and the owner is the user "
                f"{status.st_uid}, who can replace keys. Change the owner to the user "
                f"{os.geteuid()} or root [DPWA-E101]"
            )
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISVTX:
            is_private = _is_private(status.st_gid)
            forbidden = stat.S_IWOTH if is_private else _WRITTEN_BY_OTHERS
            _require_mode(step, status.st_mode, forbidden, _PUTS_KEYS)


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the existing folders and links on the path to a file, and the file itself."""
    at, left = Path("/"), [*reversed(path.absolute().parts)]
    for _ in range(_MAX_STEPS):
        if not left:
            return
        part = left.pop()
        at = at.parent if part == ".." else at / part
        try:
            status = at.lstat()
        except OSError:  # the code that opens the file reports the reason
            return
        yield at, status
        if stat.S_ISLNK(status.st_mode):
            left += reversed(at.readlink().parts)
            at = at.parent


def _is_private(group: int) -> bool:
    """Return whether a group has no other member. Many systems give each user such a group."""
    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and {*found.gr_mem} <= {user}


def _write_new(path: Path, content: SecretKey, mode: int) -> None:
    try:
        # O_EXCL, because a key is never overwritten. The mode holds from the first moment.
        file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file, "wb") as stream:
            stream.write(content.reveal())
            stream.flush()
            os.fsync(file)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UserError(
            f"{path}: the file cannot be written ({error.strerror}) [DPWA-E024]"
        ) from None


def _exists(path: Path) -> UserError:
    return UserError(f"{path}: the file already exists, and dpwa overwrites no keys [DPWA-E227]")
