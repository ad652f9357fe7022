"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.messaging was removed after 2017, because it unpickled data from the network. Nodes "
    "exchange messages by themselves. Use `from dpwa import DpwaConnection`, and see "
    "docs/migration.md",
    name="dpwa.messaging",
)
