"""Ten programs of public packages as torch, and with PyTorch: time to import and to run.

Each runs in a process of its own with one thread, the two frameworks in turns. The first run has
the import of the package and, with lowtide, the reading of compiled kernels (they are compiled by a
run before, which is not counted); the later ones are 20 steps of training with the making of the
model. Printed are medians in seconds and their ratios; above 1, lowtide is slower; and the most
memory that the process has had, in MiB. PyTorch and the packages of tests/testbed/packages.txt must
be importable from the folders that are named. ``--files`` names files of the test bed, all of whose
programs run instead of the ten.

    python -m benchmarks.public_programs --packages FOLDER [--rounds N] [--repeat N] [--threads N]
        [--files FILE...]
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
    parser.add_argument("--files", nargs="*", default=[])
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    from tests.testbed import comparison

    programs = {
        f"{package}:{name}": file
        for file in given.files
        for package, name in comparison.programs(file)
    }
    print("| program | import, first run | | ratio | later runs | | ratio | peak, MiB | | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for program, file in (programs or PROGRAMS).items():
        first, later, peaks = ({True: [], False: []} for _ in range(3))
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
                    peaks[ours].append(report["peak"] / 2**20)
        cells = []
        for found, digits in ((first, 3), (later, 3), (peaks, 0)):
            a, b = (statistics.median(found[ours]) for ours in (True, False))
            cells += [f"{a:.{digits}f}", f"{b:.{digits}f}", f"{a / b:.2f}"]
        print(f"| {program.replace(':', ', ')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
