"""The entry that each member sends to a collective, which describes its call and its value."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgpack
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from dpwa.data.layout import Layout
from dpwa.errors import ProtocolError
from dpwa.policy.group_views import Member
from dpwa.wire.messages import printable, unpack

MAX_VALUE_BYTES = 2**40
INLINE_BYTES = 8 * 1024  # values up to this size are sent inside the entry
_DESCRIPTIONS = 16
_DESCRIPTION_BYTES = 200  # an entry with an inline value must fit into a record
_LISTED = 8  # maximum number of members that a message lists for one call


_Text = Annotated[str, AfterValidator(printable)]


class Contribution(NamedTuple):
    """The entry of one member in a collective, with a description of the member's value."""

    call: _Text  # such as `all_reduce sum`; equal on all members
    contributes: bool = True  # whether the member has a value; false for a node in `join`
    fingerprint: bytes = b""  # of the layout of the value; empty if values may differ in layout
    leaves: int = 0  # number of leaves of the value
    # dtypes and shapes of the first leaves
    descriptions: Annotated[tuple[_Text, ...], Field(strict=False)] = ()
    nbytes: Annotated[int, Field(ge=0, le=MAX_VALUE_BYTES)] = 0  # size of the value in bytes
    # the numbers of the shared buffers with the member's value, and with its reduced shard
    buffers: Annotated[tuple[int, int], Field(strict=False)] = (0, 0)
    inline: bytes = b""  # the value itself, if it is small
    root: str = ""  # the node whose value all members get; empty: all values are reduced
    is_whole: bool = False  # whether the other member of a pair can map the whole value
    is_sound: bool = True  # false if the value is not finite, and is left out of the result
    digest: bytes = b""  # of data that should be equal on all members

    def pack(self) -> bytes:
        return bytes(msgpack.packb(self))

    @classmethod
    def unpack(cls, record: bytes) -> Contribution:
        with suppress(ValidationError):
            found = _CONTRIBUTION.validate_python(unpack(record))
            if len(found.inline) in (0, found.nbytes):
                return found
        raise ProtocolError("a message does not describe the call of a collective")


_STRICT = ConfigDict(strict=True)
_CONTRIBUTION = TypeAdapter(Contribution, config=_STRICT)
_MEMBERS = TypeAdapter(Annotated[tuple[Member, ...], Field(strict=False)], config=_STRICT)

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
    if mine.leaves != theirs.leaves:
        return f"{first} has {mine.leaves} leaves, {name} has {theirs.leaves}"
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
    try:
        return _MEMBERS.validate_python(unpack(record))
    except ValidationError:
        raise ProtocolError("a message has an invalid list of nodes that ask to join") from None
