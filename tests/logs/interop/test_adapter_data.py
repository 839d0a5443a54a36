"""The files of other tools are those that the script makes."""

import hashlib
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"


def test_files_of_other_tools_have_the_hashes_of_the_script():
    found = importlib.util.spec_from_file_location(
        "make_adapter_data", ROOT / "scripts" / "make_adapter_data.py"
    )
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    files = {path.name: path for path in DATA.iterdir() if path.name != "README.md"}
    assert set(files) == set(script.EXPECTED)
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == script.EXPECTED[name], name
        assert path.stat().st_size < 50_000
