"""Hard limits of the protocol. They are checked before memory is allocated.

Over loopback TCP, chunks of 1 MiB were the fastest of 64 KiB to 8 MiB. Six chunks in flight use the
whole bandwidth.
"""

from __future__ import annotations

PROTOCOL_VERSION = 16

MAX_HEADER_BYTES = 16 * 1024
MAX_CHUNK_BYTES = 4 * 1024 * 1024
MAX_PUSH_BYTES = 256 * 1024  # that may be sent to a node without a request
MAX_DETAIL_BYTES = 256 * 1024  # of a layout or a report; to unpack more would delay the trainer
MAX_HISTORY_BYTES = 1024 * 1024  # of an answer to a process that watches the run
MAX_FRAMES = 2  # a header, and a payload for some messages

CHUNK_BYTES = 1024 * 1024
MIN_CHUNK_BYTES = 4096
CHUNK_MULTIPLE_BYTES = 64  # a multiple of every element size, so that no element is split
MAX_PIECES = 128 * 1024  # of a snapshot, because each piece is an object on both nodes
CREDIT_CHUNKS = 6
GRANTED_CHUNKS = 3  # minimum number of chunks that one `Credit` allows
MAX_CREDIT_CHUNKS = 16

MAX_SESSIONS = 64  # snapshots that are served at once
MAX_CODEC_CHARACTERS = 32
MAX_DIGEST_BYTES = 16  # of the values with which a node ends
MAX_UNSTRUCTURED_BYTES = 64 * 1024**3  # a payload of plain bytes, whose length the peer decides

MAX_NAME_CHARACTERS = 64  # of a node, a group, an algorithm
TRANSACTION_BYTES = 8
MAX_UPDATES = 2**53  # of a node, as the node reports it
MAX_NEWS = 32  # loss reports in one message: about 1.5 KB, 20 us to check

INCARNATION_BYTES = 8
MAX_MEMBERS = 128  # of a view, so that their names fit into a header
MAX_RECORD_BYTES = 12 * 1024  # of the record in a `Post`
MAX_PULLED_BYTES = 2 * CHUNK_BYTES  # in one piece, so that a pull needs fewer messages
MAX_WAITING_PULLS = 1024  # for shards that are not reduced yet

MAX_ROSTER_BYTES = 128 * 1024  # enough for `MAX_ROSTER_ENTRIES` of the maximum length
MAX_ROSTER_ENTRIES = 2 * MAX_MEMBERS  # in one message: members, and some nodes that are gone
MAX_ENDPOINT_CHARACTERS = 280
MAX_DIGEST_BYTES = 16

MAX_TABLES = 128
MAX_CLIENT_CHARACTERS = MAX_NAME_CHARACTERS + 2 * INCARNATION_BYTES + 1
MAX_REASON_CHARACTERS = 200
MAX_HOLDINGS_BYTES = 4 * 1024 * 1024  # of a `TableHoldings`, at the beginning of a view
MAX_KEYS_BYTES = 256 * 1024**2  # of one addition to a shard of a key-value table, or of one read

STATE_TOKEN_BYTES = 8
MAX_STATE_UPDATES = 2**52  # so that later versions are valid, too
MAX_STATE_WAITING = 256  # pieces of a state that wait for a slow link
