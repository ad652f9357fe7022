"""This module was removed after 2017. Importing it raises an error that names the replacement."""

raise ModuleNotFoundError(
    "dpwa.conn was removed after 2017. A node now creates its RxThread and TxThread itself. Use "
    "`from dpwa import DpwaConnection`, and see docs/migration.md",
    name="dpwa.conn",
)
