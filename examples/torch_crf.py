"""Trains a small PyTorch model with a semi-Markov CRF, and with a linear-chain CRF beside it.

    pip install . torch && python examples/torch_crf.py

The data are sampled from a known semi-Markov model: three labels with durations of their own, seen
through noise. Both models have the same encoder; they differ in the longest segment K alone. Prints
losses and scores on unseen rows, and writes a picture (PNG with matplotlib, else SVG).
"""

import argparse
import pathlib
import time

import numpy as np
import torch

import segfuse
from segfuse.torch import SemiMarkovCRF

MEANS, SPREAD, LONGEST = (5, 11, 20), 1.5, 28
COLOURS = ("#4c78a8", "#f58518", "#54a24b")
CLASSES, FEATURES, FRAMES = len(MEANS), 6, 240


def true_durations():
    """(K, C) probabilities: a discrete bell around each label's mean."""
    d = np.arange(1, LONGEST + 1)[:, None]
    weights = np.exp(-0.5 * ((d - np.array(MEANS)) / SPREAD) ** 2)
    return weights / weights.sum(0)


def sample(rows, seed):
    """Features (B, T, F) and labels (B, T) of the known model."""
    transition = np.log(np.ones((CLASSES, CLASSES)) - np.eye(CLASSES) + 1e-300)
    durations = np.log(true_durations() + 1e-300)
    drawn = segfuse.sample_prior(transition, durations, rows=rows, min_frames=FRAMES, seed=seed)
    labels = torch.from_numpy(drawn.to_labels()[:, :FRAMES])
    generator = torch.Generator().manual_seed(seed)
    means = torch.eye(CLASSES, FEATURES)[labels]
    return means + 1.3 * torch.randn(means.shape, generator=generator), labels


class Tagger(torch.nn.Module):
    """A convolution over a few frames, then a CRF over segments of at most K frames."""

    def __init__(self, longest):
        super().__init__()
        self.crf = SemiMarkovCRF(CLASSES, longest, self_transitions=longest == 1)
        self.encoder = torch.nn.Sequential(
            torch.nn.Conv1d(FEATURES, 16, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.Conv1d(16, self.crf.num_scores, 1),
        )

    def emission(self, features):
        return self.encoder(features.transpose(1, 2)).transpose(1, 2)

    def loss(self, features, labels):
        return self.crf(self.emission(features), labels)

    def decode(self, features):
        return self.crf.decode(self.emission(features)).to_labels()


def train(model, features, labels, steps):
    """The loss per frame at each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for step in range(steps):
        rows = torch.arange(16) + 16 * step
        rows %= len(features)
        optimizer.zero_grad()
        loss = model.loss(features[rows], labels[rows]) / FRAMES
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def runs(labels):
    """All maximal runs of a batch of labels, without the last of each row, which may be cut."""
    everything = segfuse.Segmentations.from_labels(labels, max_duration=FRAMES, num_classes=CLASSES)
    return [segments[:-1] for segments in everything]


def boundary_f1(found, gold, tolerance=1):
    hits = [0, 0]
    total = [0, 0]
    for row in zip(runs(found), runs(gold), strict=True):
        starts = [np.array([s for s, _, _ in segments]) for segments in row]
        for side in (0, 1):
            distance = np.abs(starts[side][:, None] - starts[1 - side])
            hits[side] += (distance.min(1) <= tolerance).sum()
            total[side] += len(starts[side])
    precision, recall = (hit / count for hit, count in zip(hits, total, strict=True))
    return 2 * precision * recall / (precision + recall)


def duration_histogram(labels):
    """(K, C) shares of the durations of each label's runs."""
    counts = np.zeros((LONGEST + 1, CLASSES))
    for segments in runs(labels):
        for _, duration, label in segments:
            counts[min(duration, LONGEST + 1) - 1, label] += 1
    return counts[:LONGEST] / counts.sum(0).clip(1)


def draw_matplotlib(path, losses, histograms, lanes):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(11, 7), layout="constrained")
    grid = figure.add_gridspec(3, 3, height_ratios=(2, 2, 1.2))
    axes = figure.add_subplot(grid[0, :])
    for name, values in losses.items():
        axes.plot(values, label=name)
    axes.set(xlabel="step", ylabel="loss per frame (nats)", title="Training")
    axes.legend()
    styles = {"true": {"color": "black", "lw": 2}, "linear chain": {"ls": "--"}}
    for label in range(CLASSES):
        axes = figure.add_subplot(grid[1, label])
        for name, histogram in histograms.items():
            axes.plot(
                range(1, LONGEST + 1), histogram[:, label], label=name, **styles.get(name, {})
            )
        axes.set(xlabel="frames", title=f"Decoded durations of label {label}")
        axes.legend(fontsize="small")
    axes = figure.add_subplot(grid[2, :])
    for height, row in enumerate(reversed(lanes.values())):
        for start, duration, label in row:
            axes.barh(height, duration, left=start, color=COLOURS[label], edgecolor="white")
    axes.set(
        yticks=range(len(lanes)),
        yticklabels=list(reversed(lanes)),
        xlabel="frame",
        title="An unseen row",
        xlim=(0, FRAMES),
    )
    figure.savefig(path, dpi=110)


def polyline(values, box, colour, low, high, dashed=False):
    x, y, width, height = box
    across = np.linspace(x, x + width, len(values))
    up = y + height - height * (np.asarray(values) - low) / (high - low)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def text(x, y, words, colour="black"):
    return f'<text x="{x}" y="{y}" fill="{colour}">{words}</text>'


def chart(box, title, curves):
    """curves: name -> (values, colour, dashed)."""
    x, y, width, height = box
    high = 1.05 * max(np.max(values) for values, _, _ in curves.values())
    low = min(0.0, min(np.min(values) for values, _, _ in curves.values()))
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#999"/>']
    parts += [text(x, y - 6, title), text(x - 38, y + 12, f"{high:.2f}")]
    parts += [text(x - 38, y + height, f"{low:.2f}")]
    first = next(iter(curves.values()))[0]
    peak_is_right = np.argmax(first) > len(first) / 2
    names_at = x + 8 if peak_is_right else x + width - 110
    for i, (name, (values, colour, dashed)) in enumerate(curves.items()):
        parts.append(polyline(values, box, colour, low, high, dashed))
        parts.append(text(names_at, y + 16 + 15 * i, name, colour))
    return parts


def draw_svg(path, losses, histograms, lanes):
    looks = {"true": ("black", False), "linear chain": (COLOURS[1], True)}
    looks |= {"semi-Markov": (COLOURS[0], False)}
    curves = {name: (values, *looks[name]) for name, values in losses.items()}
    parts = chart((90, 30, 980, 180), "Training: loss per frame (nats), by step", curves)
    for label in range(CLASSES):
        box = (90 + 340 * label, 250, 290, 180)
        curves = {name: (h[:, label], *looks[name]) for name, h in histograms.items()}
        parts += chart(box, f"Label {label}: decoded durations, 1 to {LONGEST} frames", curves)
    for lane, (name, row) in enumerate(lanes.items()):
        y = 480 + 34 * lane
        parts.append(text(4, y + 18, name))
        for start, duration, label in row:
            left, width = 90 + 980 * start / FRAMES, 980 * duration / FRAMES
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="26" '
                f'fill="{COLOURS[label]}" stroke="white"/>'
            )
    parts.append(text(90, 470, f"An unseen row of {FRAMES} frames"))
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="1090" height="600" font-size="12" '
    body = "\n".join(parts)
    path.write_text(
        f'{head}font-family="sans-serif">\n'
        f'<rect width="1090" height="600" fill="white"/>\n{body}\n</svg>\n'
    )


def draw(path, *content):
    """Returns the path that was written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        path = path.with_suffix(".svg")
        draw_svg(path, *content)
    else:
        path = path.with_suffix(".png")
        draw_matplotlib(path, *content)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/torch_crf"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the layers are so small that threads would only wait
    features, labels = sample(rows=64, seed=1)
    unseen, gold = sample(rows=32, seed=2)
    losses, histograms = {}, {"true": true_durations()}
    lanes = {
        "gold": segfuse.Segmentations.from_labels(
            gold[:1], max_duration=FRAMES, num_classes=CLASSES
        )[0]
    }
    for name, longest in (("semi-Markov", LONGEST), ("linear chain", 1)):
        torch.manual_seed(0)
        model = Tagger(longest)
        begin = time.perf_counter()
        losses[name] = train(model, features, labels, arguments.steps)
        seconds = time.perf_counter() - begin
        found = model.decode(unseen)
        print(
            f"{name:13} K = {longest:2}: loss per frame {losses[name][0]:.3f} -> "
            f"{losses[name][-1]:.3f} in {seconds:.1f} s; unseen rows: "
            f"frames right {(found == gold).float().mean():.3f}, "
            f"boundary F1 (1 frame) {boundary_f1(found, gold):.3f}"
        )
        histograms[name] = duration_histogram(found)
        lanes[name] = segfuse.Segmentations.from_labels(
            found[:1], max_duration=FRAMES, num_classes=CLASSES
        )[0]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    print("picture:", draw(arguments.out, losses, histograms, lanes))


if __name__ == "__main__":
    main()
