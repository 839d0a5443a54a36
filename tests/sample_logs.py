"""One log, as every source of rows can hold it."""

import gzip
import json

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hieropo.rows.batches import Roles

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


def csv_file(table, folder, name="log.csv", **writing):
    path = folder / name
    with pa.CompressedOutputStream(path, "gzip") if name.endswith(".gz") else path.open("wb") as file:
        pacsv.write_csv(table, file, pacsv.WriteOptions(**writing))
    return path


def json_lines(table, folder, name="log.jsonl"):
    path = folder / name
    content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def ipc_file(table, folder, name="log.arrow"):
    path = folder / name
    make = pa.ipc.new_stream if name.endswith(".arrows") else pa.ipc.new_file
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=130)
    return path


def of_parts(make, ending):
    """Three files of a format in a folder; each names the columns in another order."""

    def made(table, folder):
        (folder / "parts").mkdir()
        for part, (start, stop) in enumerate([(0, 10), (10, 500), (500, 1000)]):
            columns = table.column_names[part:] + table.column_names[:part]
            make(table.select(columns).slice(start, stop - start), folder / "parts", f"{part}{ending}")
        return folder / "parts"

    return made


def hive_folder(table, folder):
    """Parquet files whose folders name the offer; rows in the order of the offers."""
    root = folder / "hive"
    for offer in range(5):
        rows = table.filter(pc.field("offer") == offer)
        (root / f"offer={offer}").mkdir(parents=True)
        pq.write_table(rows.drop_columns(["offer"]), root / f"offer={offer}" / "part.parquet")
    return root


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
    "glob": lambda table, folder: parquet_folder(table, folder) / "*" / "*" / "*.parquet",
    "csv file": csv_file,
    "tsv file": lambda table, folder: csv_file(table, folder, "log.tsv", delimiter="\t"),
    "csv with semicolons": lambda table, folder: csv_file(table, folder, delimiter=";"),
    "csv, compressed": lambda table, folder: csv_file(table, folder, "log.csv.gz"),
    "csv folder": of_parts(csv_file, ".csv"),
    "json lines": json_lines,
    "json lines, compressed": lambda table, folder: json_lines(table, folder, "log.jsonl.gz"),
    "json lines folder": of_parts(json_lines, ".ndjson"),
    "ipc file": ipc_file,
    "ipc stream": lambda table, folder: ipc_file(table, folder, "log.arrows"),
    "ipc folder": of_parts(ipc_file, ".feather"),
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
    "polars lazy": lambda table, _: pl.from_arrow(chunked(table), rechunk=False).lazy(),
    "iterator of batches": lambda table, _: iter(table.to_batches(max_chunksize=70) or [table]),
    "iterator of frames": lambda table, _: (
        chunk for chunk in pl.from_arrow(table).iter_slices(70) or [table]
    ),
    "list of tables": lambda table, _: [table.slice(0, 10), table.slice(10)],
    "duckdb": duckdb_relation,
    "arrow c stream": lambda table, _: OnlyStream(table),
}
