"""What must hold of the repository as a whole."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hieropo

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hieropo"
FOLDERS = (".ci", "benchmarks", "docs", "experiments", "scripts", "src", "tests")
HEAVY = ("adbc_driver_manager", "duckdb", "matplotlib", "numba", "pandas", "polars", "pyarrow", "starlette")


def tracked() -> Iterator[Path]:
    """Every file that belongs to the repository."""
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in FOLDERS:
        yield from (p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        try:
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, hieropo; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_learner_loads_no_library_that_few_fits_need() -> None:
    code = (
        "import sys; from hieropo import HierOPO; print(sorted({'scipy.stats', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", hieropo.__all__)
def test_public_name_is_there_and_in_the_glossary(name: str) -> None:
    value = getattr(hieropo, name)
    if name != "__version__":
        assert value.__doc__
        assert f"`{name}" in (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Hieropo'"):
        hieropo.Hieropo  # noqa: B018  the access itself is what raises


def test_dir_shows_the_public_names_alone() -> None:
    assert dir(hieropo) == sorted(hieropo.__all__)


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "hieropo"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"hieropo, version {hieropo.__version__}\n"
    unknown = subprocess.run([*command, "fat"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "Usage: python -m hieropo [OPTIONS]" in unknown.stderr


MATHEMATICS = (
    "_kernels", "_utils", "estimation", "features", "logging_policy", "model", "moments", "ope", "policies", "rows",
)  # fmt: skip


def test_mathematics_imports_only_numpy_scipy_numba() -> None:
    allowed = {"hieropo", "llvmlite", "numba", "numpy", "scipy", "threadpoolctl"}
    paths = [path for package in MATHEMATICS for path in (SOURCE / package).rglob("*.py")]
    strays = {path.name: imported_packages(path) - allowed for path in paths}
    assert not {name: packages for name, packages in strays.items() if packages}


def test_third_party_packages_enter_where_the_design_says() -> None:
    homes = {
        "adbc_driver_postgresql": ("logs",),
        "click": ("cli",),
        "duckdb": ("logs",),
        "llvmlite": ("_kernels",),
        "matplotlib": ("plots", "reproduce"),
        "mlflow": ("cli",),
        "msgspec": ("serve",),
        "numba": ("_kernels",),
        "numpy": ("",),
        "prometheus_client": ("serve",),
        "pyarrow": ("logs", "passes", "decisions", "storage", "cli", "serve", "spark"),
        "pyspark": ("spark",),
        "scipy": (
            "_utils",
            "estimation",
            "evaluation",
            "logging_policy",
            "model",
            "ope",
            "policies",
            "reproduce",
            "rows",
        ),
        "sqlglot": ("passes/warehouse",),
        "sklearn": ("learners/estimator.py",),  # where scikit-learn asks for tags
        "starlette": ("serve",),
        "threadpoolctl": ("_utils",),
        "uvicorn": ("serve",),
    }
    strays = [
        f"{place} imports {package}"
        for place, packages in ((p.relative_to(SOURCE).as_posix(), imported_packages(p)) for p in modules())
        for package in packages - {"hieropo"}
        if not place.startswith(homes.get(package, ()))
    ]
    assert not strays


def test_no_module_is_longer_than_800_lines() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert not {name: length for name, length in lengths.items() if length > 800}


def test_text_names_no_path_of_one_machine_and_no_registry() -> None:
    # Put together here, so that this file does not name them either.
    words = ("/" + "work/", "pypi" + ".org", "python" + "hosted", "--index" + "-url", "--find" + "-links")
    strays = [f"{path}: {word}" for path, text in texts() for word in words if word in text]
    assert not strays


REFERENCE = re.compile(r":(mod|func|class|meth):`~?([A-Za-z_.]+)`")


@pytest.mark.slow
def test_references_in_docstrings_name_what_exists() -> None:
    trees = {path: tree(path) for path in modules()}
    places = {part for path in trees for part in (*path.relative_to(SOURCE).parent.parts, path.stem)}
    defined = {
        node.name
        for module in trees.values()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    strays = [
        f"{path.relative_to(SOURCE)}: {kind} {name}"
        for path in trees
        for kind, name in REFERENCE.findall(path.read_text(encoding="utf-8"))
        for *before, last in [name.removeprefix("hieropo.").split(".")]
        if last not in (places if kind == "mod" else defined) or not set(before) <= places | defined
    ]
    assert not strays


def test_decision_records_are_numbered_without_gaps() -> None:
    parts = ("Status:", "## Context", "## Decision", "## Consequences")
    for number, path in enumerate(sorted((ROOT / "docs" / "adr").glob("*.md"))):
        assert re.fullmatch(rf"{number:04d}-[a-z0-9]+(-[a-z0-9]+)*", path.stem), path.name
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number:04d}. ")
        assert not [part for part in parts if part not in text], path.name


def links(path: Path) -> list[str]:
    found: list[str] = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    return [target for target in found if "://" not in target and not target.startswith("mailto:")]


def test_links_between_documents_lead_somewhere() -> None:
    documents = [path for path in tracked() if path.suffix == ".md"]
    assert not [
        (p.name, target) for p in documents for target in links(p) if not (p.parent / target).exists()
    ]


EVASIVE = re.compile(r"(Say|Give|Tell|What|Whether|How|Which)s?\b")


def test_first_lines_of_docstrings_say_what_is_returned_or_done() -> None:
    """A first line begins with a verb of the act, or names the value; "Give" and "Whether" hide the subject."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    strays = [
        f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}"
        for folder in ("src", "experiments", "benchmarks", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree(path))
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)) and EVASIVE.match(docstring)
    ]
    assert not strays
