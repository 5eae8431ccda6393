"""Draws curve.png and tour.png. Needs NumPy and matplotlib.

usage: sexpgpu-run route.tar --out run --output-format=json --diagnostic tours | python plot.py
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
from two_opt import mean_length

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).parent
BATCH, MAP = 64, 40  # the runner prints the tours of the last batch of a pass; which of them is drawn


def read(lines):
    """The training steps and the passes, each as (step, length), and the tours of MAP after each pass, [8 20]."""
    steps, passes, tours = [], [], []
    for line in map(json.loads, lines):
        if "pass" in line:
            passes.append((line["step"], float(line["metrics"]["tour"])))
        elif line.get("diagnostic") == "tours":
            tours.append(np.array(line["values"][MAP]))
        elif "loss" in line and "metrics" in line:
            steps.append((line["step"], float(line["metrics"]["tour"])))
    return steps, passes, tours


def curve(steps, passes, reference):
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(*zip(*steps, strict=True), color="#9ab", label="drawn tours, training maps")
    axes.plot(*zip(*passes, strict=True), "o-", color="#147", label="best of 8 greedy tours, 512 test maps")
    axes.axhline(reference, color="#b42", linestyle="--", linewidth=1, label="nearest neighbour and 2-opt, best of 8")
    axes.set(xlabel="step", ylabel="mean length of a tour", xlim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(HERE / "curve.png", dpi=110, metadata={"Software": None})


def tour_length(points, tour):
    return np.sqrt(((points[tour] - points[np.roll(tour, -1)]) ** 2).sum(-1)).sum()


def draw(axes, points, tours, title):
    """The shortest of the tours [8 20] on one map [20 2]."""
    best = min(tours, key=lambda tour: tour_length(points, tour))
    ring = points[np.append(best, best[0])]
    axes.plot(*ring.T, "-", color="#147", linewidth=1.5)
    axes.plot(*points.T, "o", color="#b42", markersize=4)
    axes.set(
        title=f"{title}: {tour_length(points, best):.2f}", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xticks=[], yticks=[]
    )
    axes.set_aspect("equal")


def main():
    steps, passes, tours = read(sys.stdin)
    curve(steps, passes, mean_length())
    points = np.load(HERE / "maps.npz")["points"][-BATCH:][MAP]
    figure, both = plt.subplots(1, 2, figsize=(6.4, 3.4), layout="constrained")
    for axes, n in zip(both, (0, -1), strict=True):
        draw(axes, points, tours[n], f"after {passes[n][0]} steps")
    figure.savefig(HERE / "tour.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
