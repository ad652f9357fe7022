"""A removed module of 2017. Importing it raises an error that names its replacement."""

raise ModuleNotFoundError(
    "dpwa.conn was removed after 2017, because RxThread and TxThread now belong to the node. Use "
    "`from dpwa import DpwaConnection`, and see docs/migration.md",
    name="dpwa.conn",
)
