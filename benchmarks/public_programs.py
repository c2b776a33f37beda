"""Ten programs of public packages as torch, and with PyTorch: time to import and to run.

Each runs in a process of its own with one thread, the two frameworks in turns. The first run has
the import of the package and, with lowtide, the reading of compiled kernels (they are compiled by a
run before, which is not counted); the later ones are 20 steps of training with the making of the
model. Printed are medians in seconds and their ratios; above 1, lowtide is slower. PyTorch and the
packages of tests/testbed/packages.txt must be importable from the folders that are named.

    python -m benchmarks.public_programs --packages FOLDER [--rounds N] [--repeat N] [--threads N]
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

PROGRAMS = {
    "timm:test_vit": "vision",
    "timm:mobilenet_v3": "vision",
    "denoising-diffusion-pytorch:diffusion": "vision",
    "vector-quantize-pytorch:vector_quantizer": "vision",
    "x-transformers:decoder": "attention",
    "torchdiffeq:adjoint": "science",
    "gpytorch:exact_gp": "science",
    "transformers:gpt2": "language",
    "pytorch-metric-learning:triplets": "learning",
    "stable-baselines3:agent": "learning",
}


def main():
    """Run all of them and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    from tests.testbed import comparison

    print("| program | import, first run | | ratio | later runs | | ratio |")
    print("|---|---|---|---|---|---|---|")
    for program, file in PROGRAMS.items():
        first, later = ({True: [], False: []} for _ in range(2))
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(-1, given.rounds):
                for ours in (True, False):
                    report = comparison.run(
                        file, Path(folder), given.packages, ours, [program], given.repeat
                    )
                    if report["errors"]:
                        raise RuntimeError(report["errors"][program])
                    if turn < 0:
                        continue  # what was not compiled yet is now
                    first[ours].append(report["import"] + report["seconds"][program])
                    later[ours] += report["again"][program]
        cells = []
        for times in (first, later):
            a, b = (statistics.median(times[ours]) for ours in (True, False))
            cells += [f"{a:.3f}", f"{b:.3f}", f"{a / b:.2f}"]
        print(f"| {program.replace(':', ', ')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
