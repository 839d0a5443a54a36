"""The SQL text of the sums of a log: one row for each task and action, products of columns re-centred in the text.

With a column of clusters there is one row for each task, action and cluster.

The inner select casts the columns and checks every row; a row that cannot be used is counted under its reason and is
in no sum. One row of means gives the origin of columns that lie far from 0: z = (x - o, r - o_r, 1), whose products are
summed. Sums around 0 would lose (mean / sd)^2 units of the last place, and no change of origin afterwards brings these
digits back. A last row, of constants, describes the table: roles of columns, features, and the checks.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hieropo.errors import InputError
from hieropo.features.maps import Columns as ColumnsMap
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.features.terms.learned import LearnedTerms
from hieropo.features.terms.terms import Term, Terms
from hieropo.moments.recentring import FAR, FAR_REWARDS
from hieropo.passes.clusters import check_cluster
from hieropo.passes.designs import is_formula
from hieropo.passes.feature_choice import FeatureChoice, map_with
from hieropo.passes.warehouse.dialects import Dialect, check_by_parser, dialect_of
from hieropo.passes.warehouse.expressions import (
    Check,
    Column,
    Columns,
    context_columns,
    role_columns,
    term_columns,
)
from hieropo.rows.batches import Roles, column_tuple

VERSION = 1
MOST_FEATURES = 32
ONE_ROW = "reference"  # position of the feature that is constant; -1 where none is
_UNTOLD = {
    "eligible": "its lists are checked row by row",
}


@dataclass(frozen=True, slots=True)
class SumsText:
    """The sums of a query, to be written in a dialect.

    Parameters
    ----------
    query : str
        The rows.
    dialect : Dialect
    choice : FeatureMap, LearnedTerms, name or None
    roles : Roles
        Whose context columns are those of the design.
    columns : sequence of Column
        Columns of the query, with the checks of their values.
    features : sequence of str
        The features of a unit but its intercept, as expressions of the columns.
    has_intercept : bool
        The features of a unit begin with a 1.
    """

    query: str
    dialect: Dialect
    choice: Any
    roles: Roles
    columns: Sequence[Column]
    features: Sequence[str]
    has_intercept: bool

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of a row, in their order: problem k + 1 is a row that fails check k first."""
        return tuple(check for column in self.columns for check in column.checks)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are grouped: task, action, cluster, and the columns that describe the task."""
        return tuple(column.alias for column in self._key_columns)

    @property
    def _key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.alias.startswith(_KEYS))

    @property
    def text(self) -> str:
        """The whole text."""
        keys, head = self.keys, ["problem", "about", "n_rows"]
        summed = list(self._summed())
        selected = [
            *(f"{column.key} as {column.alias}" for column in self._key_columns),
            "problem", f"cast(null as {self.dialect.text}) as about", "count(*) as n_rows",
            *(f"{expression} as {name}" for name, expression in summed),
        ]  # fmt: skip
        described = [
            *(column.null for column in self._key_columns),
            "-1", self.dialect.literal(self.document()), "0", *("null" for _ in summed),
        ]  # fmt: skip
        names = [*keys, *head, *(name for name, _ in summed)]
        assert len(described) == len(names)
        return (
            f"with origin as (\n{self._origin()}\n)\n"
            f"select {_listed(selected)}\n"
            f"from (\n{self._centred()}\n) as centred\n"
            f"group by {', '.join([*keys, 'problem'])}\n"
            f"union all\n"
            f"select {_listed(described)}\n"
        )

    def document(self) -> str:
        """Return the description of the table, as JSON."""
        checks = [[check.role, check.column, check.missing] for check in self.checks]
        described = {
            "hieropo": "sums", "version": VERSION, "roles": self.roles.to_dict(),
            "features": choice_to_dict(self.choice), "checks": checks,
        }  # fmt: skip
        return json.dumps(described)

    def _inner(self) -> str:
        """Return the columns of the query, cast."""
        listed = _listed(f"{column.expression} as {column.alias}" for column in self.columns)
        return f"select {listed}\nfrom (\n{self.query}\n) as log_rows"

    def _origin(self) -> str:
        """Return one row of means of the features and of the reward, over the rows that can be used."""
        usable = " and ".join(check.condition for check in self.checks)
        rows = f"from (\n{self._inner()}\n) as numbers\nwhere {usable}"
        features = [*self.features, "reward"]
        moments = [f"avg({x}) as a_{k}, sqrt(var_pop({x})) as d_{k}" for k, x in enumerate(features)]
        if self.has_intercept:
            means = f"select {_listed(moments)}\n{rows}"
            return f"select {_listed(self._means('o'))}\nfrom (\n{means}\n) as means"
        ranges = [
            f"{bound}({x}) as {bound}_{k}" for k, x in enumerate(self.features) for bound in ("min", "max")
        ]
        kept = [f"{bound}_{k}" for k in range(len(self.features)) for bound in ("min", "max")]
        means = f"select {_listed([*moments, *ranges])}\n{rows}"
        near = f"select {_listed([*self._means('m'), *kept])}\nfrom (\n{means}\n) as means"
        return _without_intercept(near, len(self.features), self.dialect)

    def _means(self, name: str) -> Iterator[str]:
        """Yield the mean of each feature and of the reward where it is far from 0, else 0, as the pass does.

        A mean is rounded to the power of ten below the standard deviation, as the pass rounds it: products of whole
        numbers stay whole, and a sum that is exactly 0 stays so.
        """
        number, last = self.dialect.number, len(self.features)
        for k in range(last + 1):
            a, d, limit = f"a_{k}", f"d_{k}", number(FAR_REWARDS if k == last else FAR)
            digits = f"floor(ln({d}) / ln({number(10.0)}))"
            unit, inverse = (f"power({number(10.0)}, {sign}{digits})" for sign in ("", "-"))
            yield (
                f"case when not (abs({a}) > {limit} * {d}) then {number(0.0)} "
                f"when {d} <= {number(1e-12)} * abs({a}) then {a} "
                f"when {d} >= {number(1.0)} then round({a} / {unit}) * {unit} "
                f"else round({a} * {inverse}) / {inverse} end as {name}_{k}"
            )

    def _centred(self) -> str:
        """Return the rows with features and reward less their origin, all 0 where a row cannot be used."""
        aliases = [column.alias for column in self.columns]
        problem = " ".join(
            f"when not ({check.condition}) then {k}" for k, check in enumerate(self.checks, start=1)
        )
        columns = _listed([*aliases, f"case {problem} else 0 end as problem"])
        checked = f"select {columns}\nfrom (\n{self._inner()}\n) as numbers"
        zero, last = self.dialect.number(0.0), len(self.features)

        def usable(expression: str, otherwise: str = zero) -> str:
            return f"case when problem = 0 then {expression} else {otherwise} end"

        z = [
            usable(self._less_origin(feature, k)) + f" as z_{k}"
            for k, feature in enumerate([*self.features, "reward"])
        ]
        weights = [usable(role) + f" as {role}" for role in self._weights if role != "precision"]
        if "precision" in self._weights:
            weights.append(usable("precision", self.dialect.number(1.0)) + " as precision")
        origins = [*(f"o_{k}" for k in range(last + 1)), *([] if self.has_intercept else [ONE_ROW])]
        keys = [f"case when problem = 0 then {key} end as {key}" for key in self.keys]
        return (
            f"select {_listed([*keys, 'problem', *weights, *z, *origins])}\n"
            f"from (\n{checked}\n) as checked cross join origin"
        )

    def _less_origin(self, expression: str, k: int) -> str:
        if self.has_intercept or k == len(self.features):
            return f"{expression} - o_{k}"
        return f"{expression} - case when {ONE_ROW} = {k} then {self.dialect.number(0.0)} else o_{k} end"

    @property
    def _weights(self) -> tuple[str, ...]:
        roles = ("weight", "precision", "sampling_weight")
        return tuple(role for role in roles if getattr(self.roles, role) is not None)

    def _summed(self) -> Iterator[tuple[str, str]]:
        """Yield name and expression of each number of a row of the table."""
        yield from ((f"o_{k}", f"max(o_{k})") for k in range(len(self.features) + 1))
        if not self.has_intercept:
            yield ONE_ROW, f"max({ONE_ROW})"
        yield from self._products("s", self._weights)
        if "precision" in self._weights:
            counted = [role for role in self._weights if role != "precision"]
            yield "row_sum", self._sum(*counted)
            yield "log_precision", self._sum(*counted, "ln(precision)")
        if "sampling_weight" in self._weights:
            again = [role for role in self._weights if role != "weight"]
            yield from self._products("q", (*self._weights, *again))

    def _products(self, name: str, weights: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the sums of products of two entries of z = (x, r, 1), as a packed triangle."""
        one = len(self.features) + 1
        for j in range(one + 1):
            for i in range(j + 1):
                yield f"{name}_{i}_{j}", self._sum(*(f"z_{k}" for k in (i, j) if k < one), *weights)

    def _sum(self, *factors: str) -> str:
        return f"sum({' * '.join(factors)})" if factors else self.dialect.as_double("count(*)")


_KEYS = ("task_", "action_id", "cluster_id", "level_", "metadata_")


def _listed(columns: Any) -> str:
    return ",\n  ".join(columns)


def _without_intercept(means: str, count: int, dialect: Dialect) -> str:
    """Return the origin for features without an intercept: the means of far ones, where one is the same in all rows.

    That one keeps its value, and the others are taken relative to it; without one nothing is moved.
    """
    zero = dialect.number(0.0)
    tests = " ".join(f"when min_{k} = max_{k} and min_{k} <> {zero} then {k}" for k in range(count))
    kept = ", ".join([*(f"m_{k}" for k in range(count + 1)), *(f"min_{k}" for k in range(count))])
    chosen = f"select {kept}, case {tests} else -1 end as {ONE_ROW}\nfrom (\n{means}\n) as means"
    origins = [
        f"case when {ONE_ROW} = {k} then min_{k} when {ONE_ROW} >= 0 then m_{k} else {zero} end as o_{k}"
        for k in range(count)
    ]
    origins.append(f"case when {ONE_ROW} >= 0 then m_{count} else {zero} end as o_{count}")
    return f"select {_listed([*origins, ONE_ROW])}\nfrom (\n{chosen}\n) as chosen"


def choice_to_dict(choice: FeatureChoice) -> Any:
    """Return a choice of features as JSON can hold it."""
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, LearnedTerms):
        return {"terms": choice.to_dict()}
    assert isinstance(choice, FeatureMap)
    return {"map": choice.to_dict()}


def sums_text(
    query: str,
    dialect: str,
    features: FeatureChoice,
    roles: Roles,
    kinds: Mapping[str, str] | None = None,
) -> str:
    """Return the SQL text of the sums of a query.

    Parameters
    ----------
    query : str
        One that returns the rows of the log, in the same dialect.
    dialect : str
        "duckdb", "postgres", "spark", "bigquery" or "snowflake".
    features : FeatureMap, LearnedTerms, "per-action", "indicator", "columns", optional
    roles : Roles
        Whose context columns are those of the query.
    kinds : mapping of a column to a kind, optional
        "number", "integer", "boolean", "text" or "time"; the default is a number.

    Raises
    ------
    InputError
        The features have no SQL text, or more than 32 columns for each action; a role has none; a name of a column is
        none of the dialect; sqlglot cannot parse the text.
    SchemaError
        The columns do not fit the features.
    """
    written = dialect_of(dialect)
    text = query.strip().rstrip(";").strip()
    if not text:
        raise InputError(
            "The query is empty, so that there are no rows to sum. Write one such as select * from log."
        )
    _refuse_roles(roles)
    check_cluster(roles)
    terms = _terms_of(features)
    design = roles if terms is None else roles_with(roles, terms.names)
    template = map_with(features, design, ("",))
    one = _unit_of(template)
    columns = Columns(written, kinds or {})
    more, expressions = (
        context_columns(columns, design.context) if terms is None else term_columns(columns, terms)
    )
    listed = [*role_columns(columns, roles, column_tuple(roles.task)), *more]
    sums = SumsText(text, written, features, design, listed, expressions, has_intercept(one))
    check_by_parser(sums.text, written)
    return sums.text


def roles_with(roles: Roles, context: Sequence[str]) -> Roles:
    """Return the roles with other context columns."""
    return Roles(**{**roles.to_dict(), "context": tuple(context)})


def has_intercept(features: FeatureMap) -> bool:
    """Return True where the features of a unit begin with a 1."""
    return bool(getattr(features, "intercept", False))


def _terms_of(features: FeatureChoice) -> LearnedTerms | None:
    if isinstance(features, LearnedTerms):
        return features
    if isinstance(features, Terms | Term) or is_formula(features):
        raise InputError(
            f"The features {str(features)!r} are a formula, whose levels and knots are learned from rows, and a "
            "database sums without showing rows. Learn them from some of the rows, as by LogMoments.of or hieropo "
            "moments, and give what these learned: features=moments.features.terms, --features DIRECTORY."
        )
    terms: LearnedTerms | None = getattr(features, "terms", None)
    return terms


def _refuse_roles(roles: Roles) -> None:
    for role, why in _UNTOLD.items():
        column = getattr(roles, role)
        if column is not None:
            raise InputError(
                f"{role}={column!r} was given for sums in a database, and {why}. Leave it out, or read the rows: "
                "hieropo moments, LogMoments.of."
            )


def _unit_of(features: FeatureMap) -> FeatureMap:
    """Return a map; raise where a database cannot sum its features.

    Raises
    ------
    InputError
        It describes actions by a table, is of another kind, or has more than 32 features for each action.
    """
    if not isinstance(features, ColumnsMap | Crossed) or getattr(features, "table", None) is not None:
        raise InputError(
            f"The feature map {features!r} has no SQL text: maps that give each action coefficients of its own, and "
            "context columns as they are, have one. Read the rows: hieropo moments, LogMoments.of."
        )
    dim = features.dim // len(features.actions or (0,))
    if dim > MOST_FEATURES:
        raise InputError(
            f"There are {dim} features for each action, and a text of {(dim + 2) * (dim + 3) // 2:,} sums takes a "
            f"database far longer than a read of the rows takes; {MOST_FEATURES} are allowed. Read the rows as Arrow: "
            "hieropo moments DATABASE --sql QUERY, LogMoments.of(sql(...)); or sum them with Spark: "
            "hieropo.spark.moments."
        )
    return features
