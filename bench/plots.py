"""Plots of a suite as SVG: sweeps (time over one size, logarithmic scales) and groups of bars."""

import math

WIDTH, HEIGHT, MARGIN = 480, 320, 56


def _ticks(low, high):
    return [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _scale(ticks, begin, end):
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    return lambda value: begin + (end - begin) * (math.log10(value) - low) / (high - low)


def svg(title, points, x_name, y_name):
    """A picture of [(x, y), ...], with a line of slope 1 through the last point."""
    xs, ys = zip(*sorted(points), strict=True)
    last = (xs[-1], ys[-1])
    ideal = [(xs[0], last[1] * xs[0] / last[0]), last]
    x_ticks = _ticks(xs[0], xs[-1])
    y_ticks = _ticks(min(*ys, ideal[0][1]), max(ys))
    x, y = _scale(x_ticks, MARGIN, WIDTH - 16), _scale(y_ticks, HEIGHT - MARGIN, 32)

    def line(pairs):
        return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in pairs)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-size="13">{title}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_name}</text>',
        f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">{y_name}</text>',
    ]
    for t in x_ticks:
        parts.append(
            f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="32" y2="{HEIGHT - MARGIN}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{x(t):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{t:g}</text>'
        )
    for t in y_ticks:
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 16}" y1="{y(t):.1f}" y2="{y(t):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{MARGIN - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}</text>')
    parts.append(
        f'<polyline points="{line(ideal)}" fill="none" stroke="#999" stroke-dasharray="4 3"/>'
    )
    parts.append(
        f'<polyline points="{line(sorted(points))}" fill="none" stroke="#1f5fa8" stroke-width="2"/>'
    )
    parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="#1f5fa8"/>' for a, b in points]
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(title, groups, unit):
    """A picture of {group: {bar: value}}: the same bars in each group, on a linear scale."""
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    colours = ["#c0392b", "#b8860b", "#1f5fa8", "#7fb0dd", "#3aa6a6", "#999999"]
    highest = max(value for values in groups.values() for value in values.values())
    step = 10.0 ** math.floor(math.log10(highest))
    step = step / 2 if highest / step < 4 else step
    top = step * math.ceil(highest / step)
    width, height, legend = 720, 340, 24 * math.ceil(len(names) / 3)
    bottom = height - legend - 28

    def y(value):
        return bottom - (bottom - 36) * value / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-size="13">{title}</text>',
    ]
    for i in range(round(top / step) + 1):
        at = y(i * step)
        parts.append(
            f'<line x1="{MARGIN}" x2="{width - 16}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{i * step:g}</text>'
        )
    parts.append(f'<text x="{MARGIN - 6}" y="30" text-anchor="end">{unit}</text>')
    room = (width - 16 - MARGIN) / len(groups)
    wide = room * 0.8 / len(names)
    for g, (group, values) in enumerate(groups.items()):
        left = MARGIN + g * room + room * 0.1
        parts.append(
            f'<text x="{left + room * 0.4:.1f}" y="{bottom + 16}" text-anchor="middle">{group}</text>'
        )
        for i, name in enumerate(names):
            value = values.get(name, 0)
            x = left + i * wide
            parts.append(
                f'<rect x="{x:.1f}" y="{y(value):.1f}" width="{wide * 0.9:.1f}" height="{bottom - y(value):.1f}" fill="{colours[i % len(colours)]}"/>'
            )
            parts.append(
                f'<text x="{x + wide * 0.45:.1f}" y="{y(value) - 4:.1f}" text-anchor="middle" font-size="9">{value:.0f}</text>'
            )
    for i, name in enumerate(names):
        x, at = MARGIN + (i % 3) * 210, bottom + 32 + 24 * (i // 3)
        parts.append(
            f'<rect x="{x}" y="{at}" width="12" height="12" fill="{colours[i % len(colours)]}"/>'
        )
        parts.append(f'<text x="{x + 18}" y="{at + 10}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def shares(title, lines, x_name):
    """A picture of {line: [(x, share), ...]}: shares in per cent on a linear scale, x on a logarithmic one."""
    colours = [
        "#1f5fa8",
        "#c0392b",
        "#3aa6a6",
        "#b8860b",
        "#7d3c98",
        "#5d8a2a",
        "#444444",
        "#e08bb0",
    ]
    width, height, right = 720, 360, 560
    xs = [x for points in lines.values() for x, _ in points]
    x_ticks = _ticks(min(xs), max(xs))
    top = max(1.0, *(share for points in lines.values() for _, share in points))
    x = _scale(x_ticks, MARGIN, right)

    def y(share):
        return height - MARGIN - (height - MARGIN - 36) * share / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-size="13">{title}</text>',
        f'<text x="{(MARGIN + right) / 2}" y="{height - 12}" text-anchor="middle">{x_name}</text>',
    ]
    for t in x_ticks:
        parts.append(
            f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="36" y2="{height - MARGIN}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{x(t):.1f}" y="{height - MARGIN + 16}" text-anchor="middle">{t:g}</text>'
        )
    for share in (i / 5 for i in range(int(5 * top) + 1)):
        parts.append(
            f'<line x1="{MARGIN}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{MARGIN - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
        )
    for i, (name, points) in enumerate(lines.items()):
        colour, at = colours[i % len(colours)], 48 + 20 * i
        line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5" fill="{colour}"/>' for a, b in points
        ]
        parts.append(
            f'<rect x="{right + 16}" y="{at - 10}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(f'<text x="{right + 34}" y="{at}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_shares(rows, folder, suite):
    """Our share of the copy by columns, one picture a type: SUITE_columns_TYPE.svg."""
    ours = [row for row in rows if "columns" in row and "," not in row["name"]]
    for dtype in dict.fromkeys(row["workload"].rsplit("_", 1)[1] for row in ours):
        lines = {}
        for row in ours:
            name, of = row["workload"].rsplit("_", 1)
            if of == dtype:
                lines.setdefault(name.replace("_", " "), []).append(
                    (row["columns"], row["of_copy"])
                )
        title = f"part of the copy, {dtype}, {ours[0]['device']}"
        (folder / f"{suite}_columns_{dtype}.svg").write_text(shares(title, lines, "columns"))


def write_bars(rows, folder, suite):
    """One picture for each name that has bars: SUITE_NAME.svg, the highest memory of each."""
    for name in dict.fromkeys(row["name"] for row in rows if "bar" in row):
        groups = {}
        for row in rows:
            if row["name"] == name and "bar" in row:
                groups.setdefault(row["group"], {})[row["bar"]] = row["peak_mib"]
        plain = name.replace("%", "")
        (folder / f"{suite}_{plain}.svg").write_text(
            bars(f"most memory held, {name.replace('_', ' ')}", groups, "MiB")
        )


def write(rows, folder, suite):
    """One picture a sweep: SUITE_SWEEP.svg; and those with bars."""
    write_bars(rows, folder, suite)
    for sweep in dict.fromkeys(row["sweep"] for row in rows if "sweep" in row):
        points = [(row["at"], row["ms"]) for row in rows if row.get("sweep") == sweep]
        name = next(row["name"] for row in rows if row.get("sweep") == sweep)
        title = "_".join(part for part in name.split("_") if not part.startswith(sweep))
        (folder / f"{suite}_{sweep}.svg").write_text(
            svg(f"{title} over {sweep}", points, sweep, "ms")
        )
