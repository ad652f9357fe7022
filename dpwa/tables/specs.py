"""TableSpec: the description of a table, which must be the same on all members."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, ValidationError

from dpwa.config.validation import mistakes
from dpwa.data.segments import ByteArray
from dpwa.errors import ProtocolError, UserError
from dpwa.tables.key_value import KeyValueStore
from dpwa.tables.rows import TableShard, cut, rows_shape
from dpwa.tables.updaters import Updater, make_updater
from dpwa.types import Frame, JsonObject, StrictModel

ID_BYTES = 8
MAX_VALUES = 2**40  # maximum number of values of a table


class TableSpec(StrictModel):
    """Description of a table, including the number of copies of each shard."""

    kind: Literal["array", "key_value"] = "array"  # rows have numbers, or keys
    rows: int = Field(default=0, ge=0)  # 0 for a key-value table
    columns: int | None = Field(default=None, ge=1)  # of a row; `None`: the table is a vector
    dtype: Literal["float32", "float64"] = "float32"
    updater: str = "default"  # the name of the updater that applies additions
    options: JsonObject = Field(default_factory=dict)
    # the number of copies of each shard besides the primary, if there are enough members
    replicas: int = Field(default=1, ge=0, le=16)
    default: float = Field(default=0.0, allow_inf_nan=False)  # the value of keys without additions

    @property
    def row_bytes(self) -> int:
        return (self.columns or 1) * (4 if self.dtype == "float32" else 8)

    def shape(self, rows: int) -> tuple[int, ...]:
        return rows_shape(rows, self.columns)

    def shards(self, count: int) -> tuple[TableShard, ...]:
        return cut(self.rows, count)

    def make_updater(self) -> Updater:
        return make_updater(self.updater, self.options)

    def make_key_value_store(self) -> KeyValueStore:
        return KeyValueStore(self.columns, self.dtype, self.make_updater(), self.default)

    def pack(self) -> bytes:
        return self.model_dump_json().encode()


def make_spec(**fields: object) -> TableSpec:
    try:
        spec = TableSpec.model_validate(fields)
    except ValidationError:
        wrong = mistakes(TableSpec, fields, "table")
        raise UserError(wrong) from None
    if spec.rows * (spec.columns or 1) > MAX_VALUES:
        raise UserError(
            f"a table of {spec.rows} x {spec.columns} values is too large. The maximum is "
            f"{MAX_VALUES} values [DPWA-E169]"
        )
    form = spec.make_updater().form
    if form not in (None, (spec.columns, spec.dtype)):
        raise UserError(
            f"table: the updater {spec.updater!r} needs {form[0]} columns of dtype "
            f"{form[1]} [DPWA-E241]"
        )
    if TableSpec.model_validate_json(spec.pack()) != spec:
        raise UserError(
            f"table: expected arguments that JSON can store, such as finite numbers (JSON would "
            f"store {spec.pack().decode()}) [DPWA-E241]"
        )
    return spec


def unpack_spec(data: Frame) -> TableSpec:
    """Return a member's table description. This node must know its updater."""
    try:
        spec = TableSpec.model_validate_json(bytes(data))
        spec.make_updater()
    except (ValidationError, UserError) as error:
        raise ProtocolError(f"the description of a table is invalid: {error}") from None
    return spec


def difference(ours: TableSpec, theirs: TableSpec) -> str:
    mine, others = ours.model_dump(), theirs.model_dump()
    names = [name for name in mine if mine[name] != others[name]]
    return ", ".join(f"{name} {mine[name]!r} here, {others[name]!r} elsewhere" for name in names)


def packed(ids: np.ndarray | None, delta: np.ndarray) -> ByteArray:
    """Return ids and rows in the format in which they are sent, in new memory."""
    ids_bytes = 0 if ids is None else len(ids) * ID_BYTES
    data: ByteArray = np.empty(ids_bytes + delta.nbytes, np.uint8)
    if ids is not None:
        data[:ids_bytes] = ids.view(np.uint8)
    data[ids_bytes:].view(delta.dtype)[:] = delta.reshape(-1)
    return data
