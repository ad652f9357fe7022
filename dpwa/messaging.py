"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.messaging is gone since 2017 (it unpickled what came from the network): nodes exchange "
    "messages by themselves; use DpwaConnection, of `from dpwa import DpwaConnection`, and see "
    "docs/migration.md",
    name="dpwa.messaging",
)
