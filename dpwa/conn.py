"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.conn is gone since 2017 (RxThread and TxThread belong to the node now): use "
    "DpwaConnection, of `from dpwa import DpwaConnection`, and see docs/migration.md",
    name="dpwa.conn",
)
