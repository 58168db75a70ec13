"""What a search benchmark found, as text and as a picture.

    python tests/benchmarks/search_report.py kept/*.json [--picture search.html]

says it of runs that were kept with `search.py --json`, one or several loaders each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def said(loader: str, rows: Sequence[Row]) -> str:
    """The rows of one loader."""
    mine = [row for row in rows if row["loader"] == loader]
    lines = [f"{loader} ({mine[0]['kind']}): exhaustive {mine[0]['exhaustive_seconds']:.0f} s"]
    for row in mine:
        stated = f"{row['stated_over_oracle']:.3f}" if row["stated_over_oracle"] else "-"
        lines.append(
            f"  {row['who']:13} regret {row['regret']:6.1%} +- {row['regret_error']:4.1%}"
            f" (worst {row['worst_regret']:6.1%})  {row['seconds']:7.1f} s"
            f" = {row['share']:6.1%} of exhaustive ({row['share_without_server']:6.1%} without the server's start)"
            f"  stated/oracle {stated:>6}  {row['pick'] or 'no pick'}"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row a strategy or rival, over all loaders."""
    found = []
    for who in dict.fromkeys(row["who"] for row in rows):
        mine = [row for row in rows if row["who"] == who]
        total = sum(row["exhaustive_seconds"] for row in mine)
        found.append(
            {
                "who": who,
                "loaders": len(mine),
                "median_regret": statistics.median(row["regret"] for row in mine),
                "worst_regret": max(row["worst_regret"] for row in mine),
                "seconds": sum(row["seconds"] for row in mine),
                "median_share": statistics.median(row["share"] for row in mine),
                "share_of_all": sum(row["seconds"] for row in mine) / total,
                "median_share_without_server": statistics.median(row["share_without_server"] for row in mine),
                "stated_over_oracle": _median(row["stated_over_oracle"] for row in mine),
                "rate_error": _median(row["rate_error"] for row in mine),
                "memory_error": _median(row["memory_error"] for row in mine),
            }
        )
    return found


def table(found: Sequence[Row]) -> str:
    """The summary as one table."""
    head = (
        f"{'':13} {'loaders':>7} {'median regret':>14} {'worst':>7} {'seconds':>8} {'median share':>13} "
        f"{'of all':>7} {'no server':>10} {'stated/oracle':>14}"
    )
    lines = ["", head]
    for row in found:
        stated = f"{row['stated_over_oracle']:.3f}" if row["stated_over_oracle"] else "-"
        lines.append(
            f"{row['who']:13} {row['loaders']:7} {row['median_regret']:14.1%} {row['worst_regret']:7.1%} "
            f"{row['seconds']:8.0f} {row['median_share']:13.1%} {row['share_of_all']:7.1%} "
            f"{row['median_share_without_server']:10.1%} {stated:>14}"
        )
    for row in found:
        if row["rate_error"] is not None:
            memory = "-" if row["memory_error"] is None else f"{row['memory_error']:.1%}"
            lines.append(
                f"{row['who']}: error on settings not run, median over loaders: rate {row['rate_error']:.1%}, "
                f"peak memory {memory}"
            )
    return "\n".join(lines)


def picture(rows: Sequence[Row], path: str) -> None:
    """Regret over cost, one point a loader and searcher, as one HTML file that needs no network."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for who in dict.fromkeys(row["who"] for row in rows):
        mine = [row for row in rows if row["who"] == who]
        figure.add_scatter(
            x=[max(row["share"], 1e-4) for row in mine],
            y=[row["regret"] for row in mine],
            text=[f"{row['loader']}: {row['pick']}" for row in mine],
            mode="markers",
            name=who,
        )
    figure.update_xaxes(type="log", title="seconds used, as a share of measuring every settings", tickformat=".1%")
    figure.update_yaxes(title="regret of the pick (share of the best rate lost)", tickformat=".0%")
    figure.update_layout(title="How near the best each pick lies, and what finding it cost")
    figure.write_html(path, include_plotlyjs=True)


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--picture", help="an HTML file")
    chosen = parser.parse_args()
    rows = [row for path in chosen.runs for row in json.loads(path.read_text())["rows"]]
    for loader in dict.fromkeys(row["loader"] for row in rows):
        print(said(loader, rows))
    print(table(summary(rows)))
    if chosen.picture:
        picture(rows, chosen.picture)


if __name__ == "__main__":
    main()
