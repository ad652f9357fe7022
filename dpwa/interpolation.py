"""A module of 2017 that is gone: importing it says what has its work now."""

raise ModuleNotFoundError(
    "dpwa.interpolation is gone since 2017: `interpolation: constant`, `clock` or `loss` in the "
    "configuration chooses a rule, and `from dpwa import register_interpolation` adds one of your "
    "own; see docs/migration.md",
    name="dpwa.interpolation",
)
