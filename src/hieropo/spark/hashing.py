"""The shard of each row as a column of a Spark frame: the hash of :mod:`hieropo.rows.task_hash`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hieropo.errors import HieropoError
from hieropo.logs.arrow.arrays import task_ids
from hieropo.rows.task_hash import BITS, shards_of

SHARD = "hieropo shard"  # the name of the column
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_LOW = 0xFFFFFFFF


def with_shards(frame: Any, task: Sequence[str], shards: int) -> Any:
    """Return a frame with the shard of each row's task as a further column.

    One column of text, bytes or whole numbers is hashed by expressions of Spark; other ids by workers. A row without an
    id, which the pass refuses, is in shard 0.
    """
    from pyspark.sql import functions as f

    if not task:
        return frame.withColumn(SHARD, f.lit(0))
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if len(task) > 1 or kinds[task[0]] not in (*_WHOLE, "string", "binary"):
        return _by_workers(frame, task, shards)
    column = frame[quoted(task[0])]
    if kinds[task[0]] in _WHOLE:
        number = column.cast("bigint")
        hashed = _mix(number.bitwiseAND(f.lit(_LOW)).bitwiseXOR(_mix(f.shiftrightunsigned(number, BITS))))
    else:
        hashed = f.conv(f.substring(f.md5(column.cast("binary")), 1, 8), 16, 10).cast("bigint")
    shard = f.shiftright(hashed, BITS - (shards.bit_length() - 1)).cast("int")
    return frame.withColumn(SHARD, f.coalesce(shard, f.lit(0)))


def quoted(name: str) -> str:
    """Return the name of a column as Spark's expressions take it, whatever its signs."""
    return "`" + name.replace("`", "``") + "`"


def map_batches(
    frame: Any, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: Any
) -> Any:
    """Return ``frame.mapInArrow(work, schema)``, for any names of columns.

    Spark looks up each column of the frame by its name as an expression, where a dot is a field of a structure. So
    columns get other names on the way to a worker.
    """
    names = list(frame.columns)
    if not any({".", "`"} & set(name) for name in names):
        return frame.mapInArrow(work, schema)

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)

    return frame.toDF(*(f"column{k}" for k in range(len(names)))).mapInArrow(renamed, schema)


def _mix(x: Any) -> Any:
    """Return mix(x) of a column of 32-bit numbers in 64 bits."""
    from pyspark.sql import functions as f

    def product(column: Any, factor: int) -> Any:
        return (column * f.lit(factor)).bitwiseAND(f.lit(_LOW))

    x = product(x.bitwiseXOR(f.shiftrightunsigned(x, 16)), 0x21F0AAAD)
    x = product(x.bitwiseXOR(f.shiftrightunsigned(x, 15)), 0x735A2D97)
    return x.bitwiseXOR(f.shiftrightunsigned(x, 15))


def _by_workers(frame: Any, task: Sequence[str], shards: int) -> Any:
    """Return a frame with the shards of ids that workers hash."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    names, columns = list(frame.columns), list(task)

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, _shards(batch, columns, shards)], names=[*names, SHARD]
            )

    schema = StructType([*frame.schema.fields, StructField(SHARD, IntegerType(), nullable=True)])
    return map_batches(frame, add, schema)


def _shards(batch: pa.RecordBatch, task: Sequence[str], shards: int) -> pa.Array:
    """Return the shard of each row; 0 for all where an id is missing, which the pass refuses."""
    try:
        found = shards_of(task_ids(batch, task[0] if len(task) == 1 else tuple(task), 0), shards)
    except HieropoError:
        found = np.zeros(batch.num_rows, dtype=np.int64)
    return pa.array(found.astype(np.int32))
