"""A worker on the SDK with the tool `profile_csv`; the work itself is in `csv_profile` and `csv_chart`."""

from pathlib import Path
from typing import Annotated

from csv_chart import draw
from csv_profile import Profile, profile, read
from pydantic import Field

import pillion


class Profiled(Profile):
    """What is in a data set, and a picture of it."""

    chart: str


@pillion.tool(title="Profile a CSV file", effects=pillion.IDEMPOTENT, timeout=60, wants={"data": "csv"})
def profile_csv(
    data: Annotated[Path, Field(description="The reference of the CSV file.")],
    ctx: pillion.ToolContext,
    top: Annotated[int, Field(ge=0, le=20, description="How many of the commonest values to list.")] = 3,
) -> Profiled:
    """Says what is in each column of a CSV file (type, nulls, distinct values, spread or commonest values).

    Also how its numeric columns correlate, and draws a chart, whose reference is in the result. Use it before any other
    question about the data.
    """

    def step(message: str, done: int, total: int) -> None:
        ctx.raise_if_cancelled()
        # One step more is the chart.
        ctx.progress({"message": message, "done": done, "total": total + 1})

    source = (ctx.wanted or {})["data"]
    name = Path(source.label or "data").stem
    table = read(data)
    profiled = profile(name, table, top, step)
    png = draw(name, table)
    chart = ctx.wait(
        ctx.artifacts.put(
            png, kind="chart", media_type="image/png", label=f"{name}.png", digest=True, parents=[source.reference]
        )
    )
    steps = table.width + 2
    step(f"drew a chart of {chart.size:,} bytes", steps + 1, steps)
    return {**profiled, "chart": chart.reference}


if __name__ == "__main__":
    # The sidecar that starts this program says where it is, and with which token to attach.
    pillion.run_worker([profile_csv], concurrency=4)
