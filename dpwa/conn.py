"""A module of 2017 that is gone: importing it says what has its work now."""

raise ModuleNotFoundError(
    "dpwa.conn is gone since 2017 (RxThread and TxThread belong to the node now): use "
    "DpwaConnection, of `from dpwa import DpwaConnection`, and see docs/migration.md",
    name="dpwa.conn",
)
