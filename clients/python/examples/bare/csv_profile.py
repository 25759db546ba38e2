"""Profiles a CSV file, such as those that the package `airportsdata` ships. Knows nothing of tools."""

from collections.abc import Callable
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, NotRequired, cast

import polars as pl
from polars import selectors
from typing_extensions import TypedDict

Step = Callable[[str, int, int], None]
"""Reports what was done, how much and of how much, and stops the work there if it is not wanted any more."""

DATASETS = {path.stem: path for path in sorted(Path(str(files("airportsdata"))).glob("*.csv"))}
"""The files there are, by name."""


class Value(TypedDict):
    """One of a column's commonest values."""

    value: str
    count: int


class Column(TypedDict):
    """What is in a column: its spread if it is numeric, else its commonest values."""

    name: str
    type: str
    nulls: int
    distinct: int
    min: NotRequired[float | None]
    max: NotRequired[float | None]
    mean: NotRequired[float | None]
    p5: NotRequired[float | None]
    p25: NotRequired[float | None]
    p50: NotRequired[float | None]
    p75: NotRequired[float | None]
    p95: NotRequired[float | None]
    top: NotRequired[list[Value]]


class Correlation(TypedDict):
    """How two numeric columns move together: Pearson's r."""

    columns: list[str]
    r: float


class Profile(TypedDict):
    """What is in a data set."""

    dataset: str
    rows: int
    columns: list[Column]
    correlations: list[Correlation]


def read(path: Path) -> pl.DataFrame:
    """The table in a CSV file."""
    table = pl.read_csv(path, null_values=[""], infer_schema_length=None)
    return table.with_columns(selectors.float().fill_nan(None))  # JSON has no NaN.


def profile(dataset: str, table: pl.DataFrame, top: int, step: Step) -> Profile:
    """What is in each column of a data set, and which numeric columns move together."""
    steps = table.width + 2
    step(f"read {table.height:,} rows of {table.width} columns", 1, steps)
    columns = []
    for done, column in enumerate(table, start=2):
        columns.append(_profile(column, top))
        step(f"profiled {column.name} ({column.dtype})", done, steps)
    correlations = _correlations(table)
    step(f"correlated {len(correlations)} pairs of numeric columns", steps, steps)
    return {"dataset": dataset, "rows": table.height, "columns": columns, "correlations": correlations}


def _profile(column: pl.Series, top: int) -> Column:
    """Type, nulls and distinct values of a column; its spread if it is numeric, else its commonest values."""
    values = column.drop_nulls().rename("value")
    kind, nulls = column.dtype, column.null_count()
    facts: dict[str, Any] = {"name": column.name, "type": str(kind), "nulls": nulls, "distinct": values.n_unique()}
    if kind.is_numeric():
        facts |= _spread(values)
    else:
        counts = values.value_counts(name="count").sort(["count", "value"], descending=[True, False]).head(top)
        facts["top"] = [{"value": str(value), "count": count} for value, count in counts.iter_rows()]
    return cast("Column", facts)


def _spread(values: pl.Series) -> dict[str, float | None]:
    value = pl.col("value")
    spread = values.to_frame().select(
        min=value.min(),
        max=value.max(),
        mean=value.mean(),
        **{f"p{percent}": value.quantile(percent / 100, "linear") for percent in (5, 25, 50, 75, 95)},
    )
    return {name: None if fact is None else _round(fact) for name, fact in spread.row(0, named=True).items()}


def _correlations(table: pl.DataFrame) -> list[Correlation]:
    """Pearson's r of each two numeric columns, the strongest first; without those where one is constant."""
    names = [name for name, kind in table.schema.items() if kind.is_numeric()]
    pairs = [(left, right, table.select(pl.corr(left, right)).item()) for left, right in combinations(names, 2)]
    defined = [pair for pair in pairs if pair[2] is not None and pair[2] == pair[2]]
    defined.sort(key=lambda pair: -abs(pair[2]))
    return [{"columns": [left, right], "r": max(-1.0, min(1.0, _round(r)))} for left, right, r in defined]


def _round(fact: float) -> float:
    """Nine significant digits: more would be noise of the arithmetic."""
    return float(f"{fact:.9g}")
