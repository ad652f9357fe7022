"""Raise an error that names the replacement of this module, which was removed after 2017."""

raise ModuleNotFoundError(
    "dpwa.messaging was removed after 2017, because it unpickled data from the network. Nodes "
    "exchange messages by themselves. Use `from dpwa import DpwaConnection`, and see "
    "docs/migration.md",
    name="dpwa.messaging",
)
