"""The entry that each member sends to a collective, which describes its call and its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from dpwa.data.layout import Layout
from dpwa.errors import ProtocolError
from dpwa.policy.group_views import Member
from dpwa.wire.messages import printable, unpack

MAX_VALUE_BYTES = 2**40
INLINE_BYTES = 8 * 1024  # values up to this size are sent inside the entry
_DESCRIPTIONS = 16
_DESCRIPTION_BYTES = 200  # an entry with an inline value must fit into a record
_LISTED = 8  # maximum number of members that a message lists for one call


@dataclass(frozen=True)
class Contribution:
    """The entry of one member in a collective, with a description of the member's value."""

    call: str  # such as `all_reduce sum`; equal on all members
    contributes: bool = True  # whether the member has a value; false for a node in `join`
    fingerprint: bytes = b""  # of the layout of the value; empty if values may differ in layout
    count: int = 0  # number of leaves of the value
    descriptions: tuple[str, ...] = ()  # dtypes and shapes of the first leaves
    nbytes: int = 0  # size of the value in bytes
    # the numbers of the shared buffers with the member's value, and with its reduced shard
    buffers: tuple[int, int] = (0, 0)
    inline: bytes = b""  # the value itself, if it is small
    root: str = ""  # the node whose value all members get; empty: all values are reduced
    is_whole: bool = False  # whether the other member of a pair can map the whole value
    is_sound: bool = True  # false if the value is not finite, and is left out of the result
    digest: bytes = b""  # of data that should be equal on all members

    def pack(self) -> bytes:
        return bytes(msgpack.packb([*vars(self).values()]))

    @classmethod
    def unpack(cls, record: bytes) -> Contribution:
        match unpack(record):
            case [
                str(call),
                bool(contributes),
                bytes(fingerprint),
                int(count),
                list(descriptions),
                int(nbytes),
                [int(brought), int(reduced)],
                bytes(inline),
                str(root),
                bool(is_whole),
                bool(is_sound),
                bytes(digest),
            ] if all(isinstance(text, str) for text in descriptions) and (
                len(inline) in (0, nbytes) and 0 <= nbytes <= MAX_VALUE_BYTES
            ):
                words = tuple(printable(text) for text in descriptions)
                form = fingerprint, count, words, nbytes
                place = (brought, reduced), inline, root, is_whole
                return cls(printable(call), contributes, *form, *place, is_sound, digest)
        raise ProtocolError("a message does not describe the call of a collective")


Entries = Mapping[str, Contribution]  # of all members, by name in order of rank


def contributors(entries: Entries) -> tuple[str, ...]:
    return tuple(name for name, entry in entries.items() if entry.contributes)


def sound(entries: Entries) -> tuple[str, ...]:
    """Return the contributors with finite values, or all contributors if no value is finite."""
    names = contributors(entries)
    return tuple(name for name in names if entries[name].is_sound) or names


def described(layout: Layout) -> tuple[str, ...]:
    words = (str(tensor).encode() for tensor in layout.tensors[:_DESCRIPTIONS])
    return tuple(word[:_DESCRIPTION_BYTES].decode(errors="ignore") for word in words)


def mismatch(entries: Entries) -> str | None:
    """Return the first difference between two members' calls, in the same words on all members.

    Returns `None` if the calls of all members match.
    """
    contributing = {name: entry for name, entry in entries.items() if entry.contributes}
    first = next(iter(contributing), None)
    if first is None:
        return None
    mine = contributing[first]
    for name, theirs in contributing.items():
        if theirs.call != mine.call:
            return f"{first} called {mine.call}, {name} called {theirs.call} [DPWA-E230]"
        if theirs.fingerprint != mine.fingerprint:
            difference = _difference(first, mine, name, theirs)
            return f"members differ in the values of {mine.call}: {difference} [DPWA-E231]"
    if mine.root and mine.root not in contributing:
        present = ", ".join(contributing)
        return (
            f"{mine.root} takes no part in the {mine.call}. The members in the call are {present}"
            " [DPWA-E232]"
        )
    return None


def _difference(first: str, mine: Contribution, name: str, theirs: Contribution) -> str:
    for here, there in zip(mine.descriptions, theirs.descriptions, strict=False):
        if here != there:
            return f"{first} has {here}, {name} has {there}"
    if mine.count != theirs.count:
        return f"{first} has {mine.count} leaves, {name} has {theirs.count}"
    return f"{first} and {name} differ after the first {len(mine.descriptions)} leaves"


def calls_in_words(calls: Mapping[str, str]) -> str:
    """Describe the members' calls: `w1, w2 wait in barrier #3, w3 has called nothing`."""
    names: dict[str, list[str]] = {}
    for name, call in calls.items():
        names.setdefault(call, []).append(name)
    return ", ".join(_listed(some, call) for call, some in names.items())


def _listed(names: list[str], call: str) -> str:
    words = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        words += f" and {len(names) - _LISTED} others"
    if call:
        return f"{words} {'waits' if len(names) == 1 else 'wait'} in {call}"
    return f"{words} {'has' if len(names) == 1 else 'have'} called nothing"


def pack_join_requests(join_requests: tuple[Member, ...]) -> bytes:
    """Pack the join requests known to this node, which sends them when it is ready."""
    return bytes(msgpack.packb(join_requests))


def unpack_join_requests(record: bytes) -> tuple[Member, ...]:
    rows = unpack(record)
    try:
        members = tuple(Member(name, incarnation) for name, incarnation in rows)
    except (TypeError, ValueError):
        raise ProtocolError("a message has an invalid list of nodes that ask to join") from None
    if not all(isinstance(m.name, str) and isinstance(m.incarnation, bytes) for m in members):
        raise ProtocolError("a message has an invalid list of nodes that ask to join")
    return members
