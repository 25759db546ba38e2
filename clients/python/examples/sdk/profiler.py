"""A worker on the SDK with the tool `profile_csv`: what it adds to the work itself, which is in `csv_profile`."""

from typing import Annotated

from csv_profile import DATASETS, Profile, profile
from pydantic import Field

import pillion


@pillion.tool(title="Profile a CSV data set", effects=pillion.READ, timeout=60)
def profile_csv(
    dataset: Annotated[str, Field(json_schema_extra={"enum": list(DATASETS)}, description="The data set to profile.")],
    ctx: pillion.ToolContext,
    top: Annotated[int, Field(ge=0, le=20, description="How many of the commonest values to list.")] = 3,
) -> Profile:
    """Says what is in each column of a data set (type, nulls, distinct values, spread or commonest values).

    Also how its numeric columns correlate. Use it before any other question about the data.
    """

    def step(message: str, done: int, total: int) -> None:
        ctx.raise_if_cancelled()
        ctx.progress({"message": message, "done": done, "total": total})

    return profile(dataset, top, step)


if __name__ == "__main__":
    # The sidecar that starts this program says where it is, and with which token to attach.
    pillion.run_worker([profile_csv], concurrency=4)
