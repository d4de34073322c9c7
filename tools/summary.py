"""Prints the metrics.json of one or several trainings side by side; stdin: NAME=PATH a line."""

import json
import sys

ROWS = {
    "label_error_rate": "label error rate",
    "boundary_f1_20ms": "boundary F1 at 20 ms",
    "r_value_20ms": "R-value at 20 ms",
    "frame_accuracy": "frame accuracy",
    "segment_f1": "exact segment F1",
    "seconds": "seconds",
}


def main():
    columns = []
    for line in sys.stdin:
        name, path = line.rstrip("\n").split("=", 1)
        with open(path, encoding="utf-8") as file:
            columns.append((name, json.load(file)))
    print("\n" + " " * 22 + "".join(f"{name:>17}" for name, _ in columns))
    for key, title in ROWS.items():
        if any(key in metrics for _, metrics in columns):
            cells = [metrics.get(key) for _, metrics in columns]
            digits = 1 if key == "seconds" else 3
            texts = ["-" if cell is None else f"{cell:.{digits}f}" for cell in cells]
            print(f"{title:22}" + "".join(f"{text:>17}" for text in texts))
    print()


if __name__ == "__main__":
    main()
