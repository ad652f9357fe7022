"""What is inside of a node: tests that look there do so by these, and by no private name."""


def context_of(node):
    """Return what the parts of a node share."""
    return node._context


def fingerprint_of(member):
    """Return that of what a member gossips, which it may not have published yet."""
    return member.adapter._state.layout.fingerprint


def pending_of(tables):
    """Return what a process waits for, or is to be told of, in its tables."""
    return tables._user.pending


def threads_of(node):
    """Return the network threads of a node."""
    return node._threads


def member_list_of(connection):
    """Return the view that a node has of an open cluster."""
    return members_of(connection)._member_list


def members_of(connection):
    """Return what keeps a node among the members of an open cluster."""
    return connection._parts["membership"]
