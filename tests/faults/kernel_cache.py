"""Attacks on the libraries of compiled kernels: damage, forks, interrupts, kills, many makers.

python -m tests.faults.kernel_cache --damage 10000 --seed 0   # drawn damage of a library's file
python -m tests.faults.kernel_cache --forks 50                # forks beside a first compilation
python -m tests.faults.kernel_cache --interrupts 50           # real signals while Numba compiles
python -m tests.faults.kernel_cache --kills 50                # kill -9 while a library is made
python -m tests.faults.kernel_cache --makers 8                # processes that make the same at once
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.cpu.support.jit import compiled
from lowtide.framework.kernels.runtime import cache_folder

ROOT = Path(__file__).parents[2]


def _scaled(x: Any) -> Any:
    return x * 3.0 + 1.0


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return a file's bytes with one kind of damage, drawn: never the bytes themselves."""
    at = rng.randrange(len(data))
    kind = rng.choice(("bit", "zeros", "cut", "more", "noise", "swap"))
    if kind == "bit":
        found = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    elif kind == "zeros":
        found = data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :]
    elif kind == "cut":
        found = data[:at]
    elif kind == "more":
        found = data + rng.randbytes(rng.randrange(1, 100))
    elif kind == "noise":
        found = data[:at] + rng.randbytes(len(data[at : at + 64])) + data[at + 64 :]
    else:
        end = rng.randrange(len(data))
        low, high = sorted((at // 512 * 512, end // 512 * 512))
        found = (
            data[:low]
            + data[high : high + 512]
            + data[low + 512 : high]
            + data[low : low + 512]
            + data[high + 512 :]
        )
    return found if found != data else damaged(data, rng)


def damage(count: int, seed: int = 0, call: int = 50) -> int:
    """Damage a library's file so often; return how often what is read of it was not refused.

    Args:
        count: How many files.
        seed: Of the damage.
        call: Every so many files a kernel is called, which must make its library again.
    """
    rng = random.Random(seed)
    accepted = 0
    with tempfile.TemporaryDirectory() as folder:
        before, cache_folder.BASE = cache_folder.BASE, folder
        try:
            kernel = compiled(_scaled)
            kernel(1.0)
            identity = library._identity(kernel, "f8")
            (path,) = Path(folder, library.FOLDER).iterdir()
            data = path.read_bytes()
            for k in range(count):
                path.unlink()  # another file: this process has mapped the one that was there
                path.write_bytes(damaged(data, rng))
                path.chmod(0o600)
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    accepted += library._verified(descriptor, identity) is not None
                finally:
                    os.close(descriptor)
                if k % call == 0:
                    again = compiled(_scaled)
                    accepted += again(2.0) != 7.0
                    accepted += path.read_bytes() != data  # made again
        finally:
            cache_folder.BASE = before
    return accepted


FORK = """
import os, sys, threading, time
import numpy as np
import lowtide
from lowtide.framework.ops.registry import OPS

def loop(name, **attributes):
    return OPS[name].formula.loop_of(**attributes)[0]

def call():
    x = np.ones(64, np.float32)
    out = np.empty_like(x)
    loop("gelu", approximate="none")(out, x)
    return abs(out[0] - 0.8413447) < 1e-5

thread = threading.Thread(target=call)
thread.start()
time.sleep(float(sys.argv[1]))
child = os.fork()
if child == 0:
    os._exit(0 if call() else 1)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), call())
"""

INTERRUPT = """
import os, signal, sys, threading, time
import numpy as np
import lowtide
from lowtide.framework.ops.registry import OPS

def loop(name, **attributes):
    return OPS[name].formula.loop_of(**attributes)[0]

def shoot():
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGINT)

gun = threading.Thread(target=shoot)
x = np.ones(64, np.float32)
out = np.empty_like(x)
came = 0
try:
    gun.start()
    loop("gelu", approximate="none")(out, x)
    loop("_silu")(out, x)
    gun.join()
    time.sleep(0.01)
except KeyboardInterrupt:
    came = 1
gun.join()
for name, right in (("gelu", 0.8413447), ("_silu", 0.7310586), ("softplus", 1.3132617)):
    attributes = {"gelu": {"approximate": "none"}, "softplus": {"beta": 1.0, "threshold": 20.0}}
    more = (1.0, 20.0) if name == "softplus" else ()
    loop(name, **attributes.get(name, {}))(out, x, *more)
    assert abs(out[0] - right) < 1e-5, name
print(came)
"""

MAKE = """
import numpy as np
from lowtide.framework.ops.registry import OPS

def loop(name, **attributes):
    return OPS[name].formula.loop_of(**attributes)[0]

x = np.ones(64, np.float32)
out = np.empty_like(x)
loop("gelu", approximate="none")(out, x)
print(abs(out[0] - 0.8413447) < 1e-5)
"""


def _start(code: str, folder: str, *args: object) -> subprocess.Popen[str]:
    environment = os.environ | {"LOWTIDE_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )


def _run(code: str, folder: str, *args: object) -> str:
    process = _start(code, folder, *args)
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "it hangs"
    return out.strip() if process.returncode == 0 else f"exit {process.returncode}: {err[-2000:]}"


def forks(count: int, seed: int = 0) -> list[str]:
    """Fork so often beside a thread that compiles for the first time; return what went wrong."""
    return _drawn(FORK, count, seed, ["0 True"])


def interrupts(count: int, seed: int = 0) -> list[str]:
    """Send SIGINT so often while kernels are compiled; return what went wrong."""
    return _drawn(INTERRUPT, count, seed, ["1"])


def _drawn(code: str, count: int, seed: int, right: list[str]) -> list[str]:
    rng = random.Random(seed)
    wrong = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            delay = rng.uniform(0.0, 2.0)
            found = _run(code, folder, delay)
            if found not in right:
                wrong.append(f"after {delay:.3f} s: {found}")
    return wrong


def kills(count: int, seed: int = 0) -> list[str]:
    """Kill a process so often while it makes a library; return what the next one did wrong."""
    rng = random.Random(seed)
    wrong = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            delay = rng.uniform(0.3, 3.0)
            process = _start(MAKE, folder)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            found = _run(MAKE, folder)
            if found != "True":
                wrong.append(f"after {delay:.3f} s: {found}")
    return wrong


def makers(count: int) -> list[str]:
    """Have so many processes make the same library at once; return what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [_start(MAKE, folder) for _ in range(count)]
        found = [p.communicate()[0].strip() for p in processes]
        left = [p.suffix for p in Path(folder, library.FOLDER).iterdir()]
    wrong = [f"process {k}: {text}" for k, text in enumerate(found) if text != "True"]
    return wrong if left == [".so"] else [*wrong, f"left in the folder: {left}"]


def main() -> int:
    """Run what is asked for; say by the exit status whether anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    attacks = {"forks": forks, "interrupts": interrupts, "kills": kills}
    for name in ("damage", *attacks, "makers"):
        parser.add_argument(f"--{name}", type=int, default=0)
    args = parser.parse_args()
    bad = 0
    if args.damage:
        accepted = damage(args.damage, args.seed)
        bad += accepted
        print(f"damage: {args.damage} files, {accepted} accepted", flush=True)
    for name, attack in attacks.items():
        if count := getattr(args, name):
            wrong = attack(count, args.seed)
            bad += len(wrong)
            print(f"{name}: {count}, {len(wrong)} failures", *wrong[:8], sep="\n    ", flush=True)
    if args.makers:
        wrong = makers(args.makers)
        bad += len(wrong)
        print(f"makers: {args.makers}, {len(wrong)} failures", *wrong, sep="\n    ", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
