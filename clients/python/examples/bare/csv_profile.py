"""The tool `profile_csv`: profiles a CSV file that the package `airportsdata` ships. Knows nothing of gRPC."""

import json
from collections.abc import Callable
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
from polars import selectors

Step = Callable[[str, int, int], None]
"""Reports what was done, how much and of how much, and stops the tool there if its call was cancelled."""

DATASETS = {path.stem: path for path in sorted(Path(str(files("airportsdata"))).glob("*.csv"))}

_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": ["number", "null"]}

INPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "dataset": {"enum": list(DATASETS), "description": "The data set to profile."},
        "top": {**_COUNT, "maximum": 20, "description": "How many of the commonest values to list. Unset: 3."},
    },
    "required": ["dataset"],
    "additionalProperties": False,
}

OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "dataset": {"type": "string"},
        "rows": _COUNT,
        "columns": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "type": {"type": "string"},
                    "nulls": _COUNT,
                    "distinct": _COUNT,
                    **dict.fromkeys(("min", "max", "mean", "p5", "p25", "p50", "p75", "p95"), _NUMBER),
                    "top": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"value": {"type": "string"}, "count": _COUNT},
                            "required": ["value", "count"],
                        },
                    },
                },
                "required": ["name", "type", "nulls", "distinct"],
                "additionalProperties": False,
            },
        },
        "correlations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "columns": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
                    "r": {"type": "number", "minimum": -1, "maximum": 1},
                },
                "required": ["columns", "r"],
            },
        },
    },
    "required": ["dataset", "rows", "columns", "correlations"],
    "additionalProperties": False,
}


def profile_csv(arguments: bytes, step: Step) -> bytes:
    """What is in each column of a data set, and which numeric columns move together. JSON in, JSON out."""
    wanted = json.loads(arguments)
    # A name is looked up and never made into a path.
    table = pl.read_csv(DATASETS[wanted["dataset"]], null_values=[""], infer_schema_length=None)
    table = table.with_columns(selectors.float().fill_nan(None))  # JSON has no NaN.
    steps = table.width + 2
    step(f"read {table.height:,} rows of {table.width} columns", 1, steps)
    columns = []
    for done, column in enumerate(table, start=2):
        columns.append(_profile(column, int(wanted.get("top", 3))))
        step(f"profiled {column.name} ({column.dtype})", done, steps)
    correlations = _correlations(table)
    step(f"correlated {len(correlations)} pairs of numeric columns", steps, steps)
    profile = {"dataset": wanted["dataset"], "rows": table.height, "columns": columns, "correlations": correlations}
    return json.dumps(profile, allow_nan=False).encode()


def _profile(column: pl.Series, top: int) -> dict[str, Any]:
    """Type, nulls and distinct values of a column; its spread if it is numeric, else its commonest values."""
    values = column.drop_nulls().rename("value")
    kind, nulls = column.dtype, column.null_count()
    facts = {"name": column.name, "type": str(kind), "nulls": nulls, "distinct": values.n_unique()}
    if not kind.is_numeric():
        counts = values.value_counts(name="count").sort(["count", "value"], descending=[True, False]).head(top)
        return facts | {"top": [{"value": str(value), "count": count} for value, count in counts.iter_rows()]}
    value = pl.col("value")
    spread = values.to_frame().select(
        min=value.min(),
        max=value.max(),
        mean=value.mean(),
        **{f"p{percent}": value.quantile(percent / 100, "linear") for percent in (5, 25, 50, 75, 95)},
    )
    return facts | {name: None if fact is None else _round(fact) for name, fact in spread.row(0, named=True).items()}


def _correlations(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Pearson's r of each two numeric columns, the strongest first; without those where one is constant."""
    names = [name for name, kind in table.schema.items() if kind.is_numeric()]
    pairs = [(left, right, table.select(pl.corr(left, right)).item()) for left, right in combinations(names, 2)]
    defined = [pair for pair in pairs if pair[2] is not None and pair[2] == pair[2]]
    defined.sort(key=lambda pair: -abs(pair[2]))
    return [{"columns": [left, right], "r": max(-1.0, min(1.0, _round(r)))} for left, right, r in defined]


def _round(fact: float) -> float:
    """Nine significant digits: more would be noise of the arithmetic."""
    return float(f"{fact:.9g}")
