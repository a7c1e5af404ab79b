"""Means with 95 % intervals, as equitile/quality/mean_interval.h has them."""
import math
import statistics

# |T| stays below with probability 0.95, by degrees of freedom from 1 on.
T95 = [12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814, 2.20099, 2.17881, 2.16037, 2.14479,
       2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596, 2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841,
       2.04523]


def interval(values):
    """{mean, low, high, count}; no low and high for one value, nothing for none."""
    values = list(values)
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None, "count": 1}
    half = T95[min(len(values) - 2, len(T95) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "count": len(values)}


def ratio_interval(values):
    """The same for ratios, of their logarithms: a over b and b over a agree."""
    found = interval([math.log(value) for value in values])
    return found and {key: value if key == "count" or value is None else math.exp(value) for key, value in found.items()}


def at(points, x):
    """The line through points {(x, y)}, at x; nothing outside of them."""
    points = sorted(points)
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None
