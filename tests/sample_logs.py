"""One log, as every source of rows can hold it."""

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hieropo.sources import Roles

N = 1000
ROLES = Roles("store", "offer", "margin", "p", "w", context=("age", "price"))


def log_table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "unused": [f"{i}" * 3 for i in range(N)],
            "price": rng.standard_normal(N),
            "age": pa.array(rng.integers(18, 90, N), pa.int16()),
            "margin": rng.standard_normal(N),
            "store": [f"store {i}" for i in rng.integers(0, 30, N)],
            "offer": rng.integers(0, 5, N),
            "p": rng.uniform(0.1, 1.0, N),
            "w": rng.uniform(0.0, 2.0, N),
        }
    )


TABLE = log_table()


def parquet_file(table, folder):
    path = folder / "log.parquet"
    pq.write_table(table, path, row_group_size=300)
    return path


def parquet_folder(table, folder):
    for part, name in enumerate(["2024/02/b", "2024/01/z", "2024/02/a", "2023/12/q"]):
        path = folder / "log" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = [500, 250, 300, 0][part]
        stop = [1000, 300, 500, 250][part]
        pq.write_table(table.slice(start, stop - start), path)
    (folder / "log" / "_SUCCESS").write_text("")
    (folder / "log" / "_temporary").mkdir()
    (folder / "log" / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    (folder / "log" / "readme.txt").write_text("a log")
    return folder / "log"


class OnlyStream:
    """An object of which nothing is known but that it speaks the Arrow C stream."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def chunked(table):
    return pa.concat_tables([table.slice(start, 7) for start in range(0, max(table.num_rows, 1), 7)])


def with_dictionaries(table):
    encoded = table.set_column(
        table.schema.get_field_index("store"), "store", table["store"].dictionary_encode()
    )
    return chunked(encoded)


def duckdb_relation(table, _):
    connection = duckdb.connect()
    connection.register("log", table)
    return connection.sql("select * from log")


SOURCES = {
    "parquet file": parquet_file,
    "path as str": lambda table, folder: str(parquet_file(table, folder)),
    "parquet folder": parquet_folder,
    "table": lambda table, _: table,
    "table in small chunks": lambda table, _: chunked(table),
    "table with dictionaries": lambda table, _: with_dictionaries(table),
    "record batch": lambda table, _: pa.record_batch(
        dict(zip(table.column_names, map(pa.ChunkedArray.combine_chunks, table.columns), strict=True))
    ),
    "reader": lambda table, _: table.to_reader(max_chunksize=13),
    "dataset": lambda table, folder: ds.dataset(parquet_file(table, folder)),
    "pandas": lambda table, _: table.to_pandas(),
    "pandas categories": lambda table, _: table.to_pandas().astype({"store": "category"}),
    "polars": lambda table, _: pl.from_arrow(chunked(table), rechunk=False),
    "polars categories": lambda table, _: pl.from_arrow(chunked(table), rechunk=False).cast(
        {"store": pl.Categorical}
    ),
    "duckdb": duckdb_relation,
    "arrow c stream": lambda table, _: OnlyStream(table),
}
