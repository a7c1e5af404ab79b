"""Charts of bench/paper as SVG that reads on light and dark pages."""
import html

import numpy

COLORS = ["#9aa5b1", "#e0a030", "#3b7dd8", "#1f9d70", "#b0527a", "#7a5bd0"]
STYLE = ("<style>text{font:13px sans-serif;fill:#333}.t{font-size:16px;font-weight:bold}.g{stroke:#888;stroke-opacity:.35}"
         "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>")


def svg(width, height, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
            f"{STYLE}{body}</svg>\n")


class Axes:
    def __init__(self, title, low, high, step, width=760, height=340):
        self.width, self.height, self.low, self.high = width, height, low, high
        self.left, self.right, self.top, self.bottom = 60, 20, 60, 50
        self.body = f'<text x="{self.left}" y="24" class="t">{html.escape(title)}</text>'
        for tick in numpy.arange(low, high + step / 2, step):
            y = self.y(tick)
            self.body += (f'<line x1="{self.left}" x2="{width - self.right}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>'
                          f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.2f}</text>')

    def y(self, value):
        share = (min(value, self.high) - self.low) / (self.high - self.low)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def legend(self, names):
        x = self.left
        for name, color in zip(names, COLORS):
            self.body += f'<rect x="{x}" y="36" width="12" height="12" fill="{color}"/><text x="{x + 18}" y="47">{html.escape(name)}</text>'
            x += 30 + 8 * len(name)

    def below(self, name):
        self.body += f'<text x="{self.width / 2}" y="{self.height - 8}" text-anchor="middle">{html.escape(name)}</text>'

    def text(self):
        return svg(self.width, self.height, self.body)


def bar_chart(title, groups, series, low, high, step):
    """series: name -> one value per group."""
    axes = Axes(title, low, high, step)
    axes.legend(series)
    span = (axes.width - axes.left - axes.right) / len(groups)
    bar = 0.8 * span / len(series)
    for g, group in enumerate(groups):
        x0 = axes.left + g * span + 0.1 * span
        for s, values in enumerate(series.values()):
            y = axes.y(values[g])
            axes.body += (f'<rect x="{x0 + s * bar:.1f}" y="{y:.1f}" width="{bar - 3:.1f}" height="{axes.y(low) - y:.1f}" '
                          f'fill="{COLORS[s]}"/><text x="{x0 + (s + .5) * bar - 1:.1f}" y="{y - 4:.1f}" '
                          f'text-anchor="middle" style="font-size:11px">{values[g]:.2f}</text>')
        axes.body += f'<text x="{x0 + 0.4 * span:.1f}" y="{axes.height - 24}" text-anchor="middle">{group}</text>'
    return axes.text()


def line_chart(title, xs, series, low, high, step, x_name):
    """series: name -> one value per x, or None where there is none."""
    axes = Axes(title, low, high, step)
    axes.legend(series)
    place = lambda i: axes.left + (axes.width - axes.left - axes.right) * (i + 0.5) / len(xs)
    for s, values in enumerate(series.values()):
        there = [(place(i), axes.y(value)) for i, value in enumerate(values) if value is not None]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in there)
        axes.body += f'<polyline points="{points}" fill="none" stroke="{COLORS[s]}" stroke-width="2.5"/>'
        axes.body += "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLORS[s]}"/>' for x, y in there)
    for i, x in enumerate(xs):
        axes.body += f'<text x="{place(i):.1f}" y="{axes.height - 28}" text-anchor="middle">{x}</text>'
    axes.below(x_name)
    return axes.text()


def scatter_chart(title, series, low, high, step, x_name):
    """series: name -> [(x, y)], both axes alike, with the line y = x."""
    axes = Axes(title, low, high, step, width=620, height=480)
    axes.legend(series)
    x_of = lambda value: axes.left + (axes.width - axes.left - axes.right) * (value - low) / (high - low)
    for tick in numpy.arange(low, high + step / 2, step):
        axes.body += f'<text x="{x_of(tick):.1f}" y="{axes.height - 28}" text-anchor="middle">{tick:.2f}</text>'
    axes.body += (f'<line x1="{x_of(low):.1f}" y1="{axes.y(low):.1f}" x2="{x_of(high):.1f}" y2="{axes.y(high):.1f}" class="g" '
                  'stroke-dasharray="6 4"/>')
    for s, points in enumerate(series.values()):
        axes.body += "".join(f'<circle cx="{x_of(x):.1f}" cy="{axes.y(y):.1f}" r="4" fill="{COLORS[s]}" fill-opacity=".8"/>' for x, y in points
                             if low <= x <= high)
    axes.below(x_name)
    return axes.text()
