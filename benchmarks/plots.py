"""A run as pictures: how many times the rival's rate each client has, and what a slow network leaves of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures, Spread, cpu, rate
from benchmarks.workloads import BY_NAME

_OURS, _OTHERS = "#1f6f8b", "#b9c6cc"
_PICTURES: dict[str, Sequence[str]] = {
    "s3": ("append-1", "append-32", "list", "read"),
    "network": ("append-32-network", "read-network", "hedging", "compact"),
    "clouds": ("gcs-append-1", "gcs-append-32", "azure-append-1", "azure-append-32"),
    "local": ("local-append", "local-list", "local-read", "typed"),
}


def draw(run: Mapping[str, Any], directory: Path) -> None:
    """Write a picture for each group of workloads: SVG, which a diff can show."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "benchmarks", "svg.fonttype": "none"}
    )  # the same run gives the same, small files
    from matplotlib import pyplot

    figures = Figures(run["samples"])
    for name, workloads in _PICTURES.items():
        figure, places = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
        for axes, workload in zip(places.flat, workloads, strict=True):
            _bars(axes, figures, workload)
        figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def _bars(axes: Any, figures: Figures, workload: str) -> None:
    """A bar for each client, the fastest on top; lines from the least to the most."""
    told = BY_NAME[workload]
    shown = {client: Spread.of(values) for client in told.clients if (values := figures.values(workload, client, rate))}
    ordered = sorted(shown, key=lambda client: shown[client].middle)
    middles = [shown[client].middle for client in ordered]
    errors = [
        [shown[client].middle - shown[client].low for client in ordered],
        [shown[client].high - shown[client].middle for client in ordered],
    ]
    colours = [_OURS if "engine" in client or client in ("file store", "entries") else _OTHERS for client in ordered]
    bars = axes.barh(ordered, middles, xerr=errors, color=colours, error_kw={"elinewidth": 0.8})
    used = [Spread.of(figures.values(workload, client, cpu)).middle for client in ordered]
    axes.bar_label(
        bars, [f"  {middle:,.0f}/s, {each:,.0f} µs CPU" for middle, each in zip(middles, used, strict=True)], fontsize=8
    )
    axes.set_title(told.title, fontsize=10)
    axes.set_xscale("log")
    axes.margins(x=0.3)
    axes.spines[["top", "right"]].set_visible(False)
