"""The methods that are compared: the tool, its adapter and its environment."""

import ast
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parent / "adapters"
OURS = "HierOPO"


@dataclass(frozen=True)
class Tool:
    """A library or program.

    Parameters
    ----------
    adapter : str
        Program in ``adapters``.
    methods : dict
        Class of each method in the adapter, by its name in the tables.
    environment : str or None
        File in ``requirements``; None: the environment of hieropo.
    distribution, module : str
        Measured by their installed size and their import.
    slow : tuple of str
        Methods that run after the others, with the limits of slow ones.
    """

    adapter: str
    methods: dict[str, str]
    environment: str | None
    distribution: str
    module: str
    slow: tuple[str, ...] = ()


TOOLS = {
    "hieropo": Tool("with_hieropo", {OURS: "Default"}, None, "hieropo", "hieropo.learners.hieropo"),
    "numpy": Tool("with_numpy", {"James-Stein by action": "JamesStein"}, None, "numpy", "numpy"),
    "SQL (DuckDB)": Tool(
        "with_sql", {"SQL, best action for all": "BestForAll", "SQL, best mean of the task": "BestOfTask"},
        "duckdb", "duckdb", "duckdb",
    ),
    "scikit-learn": Tool(
        "with_sklearn",
        {"scikit-learn, RidgeCV of each task": "PerTask", "scikit-learn, RidgeCV of all tasks": "Pooled"},
        "scikit-learn", "scikit-learn", "sklearn.linear_model",
    ),
    "bayesianbandits": Tool(
        "with_bayesianbandits",
        {"bayesianbandits, [x, x (x) task]": "Wide", "bayesianbandits, agent of each task": "PerTask"},
        "bayesianbandits", "bayesianbandits", "bayesianbandits",
    ),
    "contextualbandits": Tool(
        "with_contextualbandits",
        {"contextualbandits, LinUCB on [x, x (x) task]": "Wide", "contextualbandits, LinUCB of each task": "PerTask"},
        "contextualbandits", "contextualbandits", "contextualbandits.online",
    ),
    "mabwiser": Tool(
        "with_mabwiser", {"mabwiser, policy of each task": "PerTask", "mabwiser, Clusters": "Clusters"},
        "mabwiser", "mabwiser", "mabwiser.mab",
    ),
    "Vowpal Wabbit": Tool(
        "with_vw", {"Vowpal Wabbit, mtr": "Adf", "Vowpal Wabbit, dr": "DoublyRobust"}, "vowpalwabbit",
        "vowpalwabbit", "vowpalwabbit",
    ),
    "sb-obp": Tool(
        "with_obp", {"sb-obp, IPWLearner": "Ipw", "sb-obp, QLearner": "Q"}, "sb-obp", "sb-obp", "obp.policy"
    ),
    "EconML": Tool(
        "with_econml", {"EconML, DRPolicyForest": "Forest", "EconML, DRPolicyTree": "Tree"}, "econml", "econml",
        "econml.policy", slow=("EconML, DRPolicyForest", "EconML, DRPolicyTree"),
    ),
    "mixedlm-rs": Tool(
        "with_mixed_models", {"mixedlm-rs, BLUPs by hand": "Blup"}, "mixedlm-rs", "mixedlm-rs", "mixedlm_rs"
    ),
    "statsmodels": Tool(
        "with_mixed_models", {"statsmodels MixedLM, BLUPs by hand": "Blup"}, "statsmodels", "statsmodels",
        "statsmodels.regression.mixed_linear_model", slow=("statsmodels MixedLM, BLUPs by hand",),
    ),
    "lme4": Tool("with_lme4", {"lme4, BLUPs by hand": "Blup"}, None, "", "numpy", slow=("lme4, BLUPs by hand",)),
}  # fmt: skip


def definitions(path: Path) -> dict[str, ast.AST]:
    """Classes, functions and constants of a module by their names."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


def code_lines(node: ast.AST) -> set[int]:
    """Numbers of the lines of a definition, without docstrings, blanks and comments."""
    docstrings = {
        id(inner.body[0])
        for inner in ast.walk(node)
        if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(inner)
    }
    lines: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            lines.add(inner.lineno)
        elif isinstance(inner, ast.stmt) and id(inner) not in docstrings:
            lines |= set(range(inner.lineno, _end(inner) + 1))
    return lines


def _end(node: ast.stmt) -> int:
    """Last line of a statement, or of the head of one that holds others."""
    body = getattr(node, "body", None)
    return body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno


def user_lines(adapter: str, name: str, folder: Path = ADAPTERS) -> int:
    """Lines of code that a user of a method writes: its class and all of the adapters that the class refers to."""
    places = [definitions(folder / f"{module}.py") for module in (adapter, "by_hand")]
    known = {**places[1], **places[0]}
    waiting, seen, count = [name], set(), 0
    while waiting:
        current = waiting.pop()
        if current in seen or current not in known:
            continue
        seen.add(current)
        count += len(code_lines(known[current]))
        waiting += [node.id for node in ast.walk(known[current]) if isinstance(node, ast.Name)]
    return count
