"""A module of 2017 that is gone: importing it says what has its work now."""

raise ModuleNotFoundError(
    "dpwa.messaging is gone since 2017 (it unpickled what came from the network): nodes exchange "
    "messages by themselves; use DpwaConnection, of `from dpwa import DpwaConnection`, and see "
    "docs/migration.md",
    name="dpwa.messaging",
)
