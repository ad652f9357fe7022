"""Hard limits of the protocol, checked before anything is allocated.

Chunks of 1 MiB were the fastest of 64 KiB to 8 MiB over loopback TCP. Six in flight keep the wire
full.
"""

from __future__ import annotations

PROTOCOL_VERSION = 15

MAX_HEADER_BYTES = 16 * 1024
MAX_CHUNK_BYTES = 4 * 1024 * 1024
MAX_PUSH_BYTES = 256 * 1024  # what may be sent to a node that has not asked for it
MAX_DETAIL_BYTES = 256 * 1024  # a layout or a report: unpacking more would hold up the trainer
MAX_HISTORY_BYTES = 1024 * 1024  # an answer to those who watch, who train nothing
MAX_FRAMES = 2  # a header, and for some messages one payload

CHUNK_BYTES = 1024 * 1024
MIN_CHUNK_BYTES = 4096
CHUNK_MULTIPLE_BYTES = 64  # of every element size, so that no element is cut
MAX_PIECES = 128 * 1024  # of a snapshot: each is an object, at both ends
CREDIT_CHUNKS = 6
GRANTED_CHUNKS = 3  # at once
MAX_CREDIT_CHUNKS = 16

MAX_SESSIONS = 64  # snapshots being served at once
MAX_CODEC_CHARACTERS = 32
MAX_DIGEST_BYTES = 16  # of the values that a node ends with
MAX_UNSTRUCTURED_BYTES = 64 * 1024**3  # a bytes-like payload, whose length the peer decides

MAX_NAME_CHARACTERS = 64  # of a node, a group, an algorithm
TRANSACTION_BYTES = 8
MAX_UPDATES = 2**53  # of a node, as it tells
MAX_NEWS = 32  # loss reports in one message: about 1.5 KB, 20 us to check

INCARNATION_BYTES = 8
MAX_MEMBERS = 128  # of a view: their names must fit a header
MAX_RECORD_BYTES = 12 * 1024  # what a node posts of a collective
MAX_PULLED_BYTES = 2 * CHUNK_BYTES  # in one piece: half as many messages as chunks would be
MAX_WAITING_PULLS = 1024  # for what is still being reduced

MAX_ROSTER_BYTES = 128 * 1024  # so many entries of the greatest length
MAX_ROSTER_ENTRIES = 2 * MAX_MEMBERS  # in one message: members, and some of those who are gone
MAX_ENDPOINT_CHARACTERS = 280
MAX_DIGEST_BYTES = 16

MAX_TABLES = 128
MAX_CLIENT_CHARACTERS = MAX_NAME_CHARACTERS + 2 * INCARNATION_BYTES + 1
MAX_REASON_CHARACTERS = 200
MAX_HOLDINGS_BYTES = 4 * 1024 * 1024  # a node's tables and copies, told at the beginning of a view
MAX_KEYS_BYTES = 256 * 1024**2  # of one addition to a shard of a key-value table, or of one read

STATE_TOKEN_BYTES = 8
MAX_STATE_UPDATES = 2**52  # versions go on from there
MAX_STATE_WAITING = 256  # pieces of a state that a slow link could not take yet
