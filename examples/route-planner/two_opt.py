"""What a search without learning comes to on maps.npz: nearest neighbour, then 2-opt, from the starts of run.sx.

From each start the nearest city that is left is next; then, as long as a tour grows shorter by turning one of its
stretches around, the turn that gains most is made (Croes 1958). The best of a map's tours counts. Needs NumPy.
"""

from pathlib import Path

import numpy as np

STARTS = 8


def nearest_neighbour(distance, start):
    """distance: [cities cities] -> the cities in the order of the tour, [cities]."""
    tour = [start]
    left = set(range(len(distance))) - {start}
    while left:
        tour.append(min(left, key=lambda city: distance[tour[-1], city]))
        left.remove(tour[-1])
    return np.array(tour)


def two_opt(distance, tour):
    """The tour after the last turn that gains more than rounding; turning i + 1 to j replaces two legs."""
    i, j = np.triu_indices(len(tour), 1)
    while True:
        a, b, c, d = tour[i], tour[(i + 1) % len(tour)], tour[j], tour[(j + 1) % len(tour)]
        gain = distance[a, b] + distance[c, d] - distance[a, c] - distance[b, d]
        best = gain.argmax()
        if gain[best] <= 1e-9:
            return tour
        tour[i[best] + 1 : j[best] + 1] = tour[i[best] + 1 : j[best] + 1][::-1].copy()


def tour_length(distance, tour):
    return distance[tour, np.roll(tour, -1)].sum()


def best_length(points):
    """points: [cities 2] -> the length of the best tour."""
    distance = np.sqrt(((points[:, None] - points[None]) ** 2).sum(-1))
    begin = range(0, STARTS * (len(points) // STARTS), len(points) // STARTS)
    return min(tour_length(distance, two_opt(distance, nearest_neighbour(distance, start))) for start in begin)


def mean_length():
    maps = np.load(Path(__file__).parent / "maps.npz")["points"].astype("f8")
    return float(np.mean([best_length(points) for points in maps]))


if __name__ == "__main__":
    print(f"nearest neighbour and 2-opt, best of {STARTS}: {mean_length():.3f}")
