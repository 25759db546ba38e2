"""The schemas of `profile_csv`, by hand. An SDK makes them from the annotations of a function."""

from csv_profile import DATASETS

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
