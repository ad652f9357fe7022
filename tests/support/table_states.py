"""States of shards, handed from copy to copy and compared."""


def fill(state, pieces):
    """Replace a state by what another one exports."""
    incoming = state.importing()
    for name, piece in pieces:
        incoming.feed(name, piece)


def fingerprint(state):
    """The checksum of a whole state: equal for copies with equal contents."""
    *_, (_, checksum) = state.export()
    return checksum
