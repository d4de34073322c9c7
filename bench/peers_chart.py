"""Draws docs/images/peers.svg: what one likelihood with its gradients costs here and in peers.

The figures are those of docs/performance.md; change them together.
"""

import math
from pathlib import Path

# (case, [(who, milliseconds)])
CASES = [
    (
        "Semi-Markov CRF, 32 × 1000 frames, K = 30, 39 labels, f32 (2026-11-21, -22)",
        [
            ("flash-semicrf 0.2, H200", 664),
            ("segfuse, one CPU core", 11.1),
            ("segfuse, H200", 0.37),
        ],
    ),
    (
        "Semi-Markov CRF, 2 × 100 frames, K = 6, 6 labels, one CPU thread, same run (2026-11-22)",
        [("torch-struct 0.5", 338), ("segfuse.torch", 0.77)],
    ),
    (
        "Linear-chain CRF, 32 × 1000 frames, 39 labels, one CPU thread, same run (2026-11-22)",
        [("pytorch-crf 0.7.2", 2013), ("segfuse.torch", 6.4)],
    ),
]
LOW, HIGH = 0.1, 10_000
WIDTH, LEFT, RIGHT, BAR, GAP = 720, 168, 96, 20, 6
# The page behind the picture may be dark where the browser is light, so it has its own background.
STYLE = """
.page { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #24292f }
.case { font-weight: 600 } .grid { stroke: #d0d7de } .ours { fill: #1f6feb } .peer { fill: #8c959f }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 }
  text { fill: #e6edf3 } .grid { stroke: #30363d } .ours { fill: #58a6ff } .peer { fill: #6e7681 }
}
"""


def place(milliseconds):
    share = math.log(milliseconds / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def time_text(milliseconds):
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"


def chart():
    rows, y = [], 24
    for case, bars in CASES:
        rows.append(f'<text class="case" x="8" y="{y}">{case}</text>')
        y += 10
        foot = y + len(bars) * (BAR + GAP) - GAP
        rows += [f'<path class="grid" d="M{place(10**e):.1f} {y}V{foot}"/>' for e in range(-1, 5)]
        for who, milliseconds in bars:
            end = place(milliseconds)
            kind = "ours" if who.startswith("segfuse") else "peer"
            middle = y + BAR / 2 + 4
            rows.append(f'<text x="{LEFT - 8}" y="{middle:g}" text-anchor="end">{who}</text>')
            rows.append(
                f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}"/>'
            )
            rows.append(f'<text x="{end + 6:.1f}" y="{middle:g}">{time_text(milliseconds)}</text>')
            y += BAR + GAP
        y += 22
    rows.append(f'<text x="{LEFT}" y="{y}">milliseconds, logarithmic; shorter is better</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12}" role="img" '
        'aria-label="Time of a likelihood and its gradients in segfuse and in peers">'
    )
    page = f'<rect class="page" width="{WIDTH}" height="{y + 12}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    (root / "docs/images/peers.svg").write_text(chart(), encoding="utf-8")
