"""Random programs: the same on lowtide as on PyTorch, twice alike, and alike if checkpointed.

A program is a list of statements (:mod:`tests.faults.statements`): leaves of all shapes, ops of
many families, views of views, writes in place through views and bases, ``no_grad`` and
``enable_grad``, flags, hooks, gradients accumulated, taken twice, of second order, and checkpointed
regions in regions. Some statements are to be refused. Each is run and noted (:func:`run`): what it
raised, all values, dtypes, flags, versions, gradients. Two notes are compared entry by entry; a
difference is shrunk and printed as a program that can be run.

    python -m tests.faults.programs --count 2500 --seed 0     # PyTorch is needed: importable torch
    python -m tests.faults.programs --count 2500 --alone      # lowtide beside itself, without it
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import importlib
import random
import re
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lowtide as lt
from lowtide.framework.dtypes import tolerance
from tests.faults.statements import Maker

DTYPES = ["float64"] * 16 + ["float32"] * 2 + ["bfloat16", "float16"]
# What makes a reference cycle in PyTorch too: a gradient with a graph at its leaf.
CYCLES = r"backward\(.*create_graph"
LARGEST = 1e4  # a program ends before its numbers pass this
PRELUDE = """\
import numpy as np, {name} as T
from {name}.utils.checkpoint import checkpoint
F = T.nn.functional
def N(shape, seed): return T.tensor(np.random.default_rng(seed).normal(size=shape)).to(T.{dtype})
def L(shape, seed): return N(shape, seed).requires_grad_()
def CK(f, *args): return checkpoint(f, *args, use_reentrant=False)
def SEEN(name): return lambda t: print(name, t.shape)
"""


@dataclass
class Program:
    """Statements, and the dtype of their leaves and constants."""

    seed: int
    dtype: str
    statements: list[str]
    eager: bool  # flags are asked for after every statement, which brings views up to date

    def text(self, framework: str = "torch") -> str:
        """The program as it can be run."""
        return PRELUDE.format(name=framework, dtype=self.dtype) + "\n".join(self.statements) + "\n"


@dataclass
class Notes:
    """What a run did: for each statement, what it raised and what is known of each variable."""

    entries: list[tuple[str, Any]] = field(default_factory=list)
    gradients: int = 0
    second: int = 0
    messages: dict[str, str] = field(default_factory=dict)  # of what raised, by entry
    regions: int = 0
    raised: int = 0
    hooks: int = 0
    borrowed: bool = False  # a view that requires grad because its base has come to
    left: int = 0  # bytes live after the run, beyond those before
    grad_mode: bool = True


def names_for(T: Any, dtype: str = "float64", direct: bool = False, seen: Any = None) -> Any:
    """The names that a program uses.

    Args:
        T: The framework.
        dtype: Of leaves and constants.
        direct: Call checkpointed functions plainly.
        seen: Takes what hooks were called with.
    """
    checkpoint = importlib.import_module(f"{T.__name__}.utils.checkpoint").checkpoint

    def constant(shape: Any, seed: int) -> Any:
        return T.tensor(np.random.default_rng(seed).normal(size=shape)).to(getattr(T, dtype))

    def checkpointed(f: Any, *args: Any) -> Any:
        return f(*args) if direct else checkpoint(f, *args, use_reentrant=False)

    def hook(name: str) -> Any:
        def note(t: Any) -> None:
            if seen is not None:  # of a leaf's hook, its gradient
                seen(
                    name, t if t.grad_fn is not None or not t.is_leaf or t.grad is None else t.grad
                )

        return note

    return {
        "T": T,
        "F": T.nn.functional,
        "N": constant,
        "L": lambda shape, seed: constant(shape, seed).requires_grad_(),
        "CK": checkpointed,
        "SEEN": hook,
    }


def numbers(t: Any) -> Any:
    """A copy of a tensor's values; of bfloat16 as float32."""
    t = t.detach().clone()
    if str(t.dtype).endswith("bfloat16"):
        t = t.float()
    return np.array(t.numpy())


def _described(t: Any) -> Any:
    return (str(t.dtype).rpartition(".")[2], tuple(t.shape), numbers(t))


def _variables(space: Any, T: Any) -> Any:
    return [(n, v) for n, v in space.items() if n[0] == "v" and isinstance(v, T.Tensor)]


def run(program: Program, T: Any, direct: bool = False) -> Notes:
    """Run a program and note what can be seen of it."""
    notes = Notes()
    entries = notes.entries
    ours = T is lt
    live = lt.memory_allocated("cpu") if ours else 0

    def seen(name: str, t: Any) -> None:
        notes.hooks += 1
        entries.append((f"hook of {name}", _described(t)))

    T.manual_seed(program.seed)
    space = names_for(T, program.dtype, direct, seen)
    for k, text in enumerate(program.statements):
        before = {n: v._version for n, v in _variables(space, T)}
        kind = None
        try:
            exec(compile(text, f"<statement {k}>", "exec"), space)
        except Exception as error:  # whatever it is, it is what is noted here
            kind = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
            notes.messages[f"{k} raised"] = f"line {_line(error, k)}: {error}"
        notes.raised += kind is not None
        entries.append((f"{k} raised", kind))
        backward = "backward(" in text or "autograd.grad(" in text
        if kind is not None and backward:
            break  # how far a pass has come that was refused is left open
        single = kind is None and "\n" not in text
        _note_values(entries, k, _variables(space, T), program.eager, before if single else None)
        notes.borrowed |= not ours and any(_borrows(v) for _, v in _variables(space, T))
        if kind is None:
            notes.regions += "CK(" in text
            notes.gradients += backward
            notes.second += backward and "create_graph" in text
        if backward or k == len(program.statements) - 1:
            _note_gradients(entries, k, _variables(space, T))
    notes.grad_mode = T.is_grad_enabled()
    T.set_grad_enabled(True)
    space.clear()
    if any(re.search(CYCLES, text) for text in program.statements):
        gc.collect()
    if ours:
        notes.left = lt.memory_allocated("cpu") - live
    return notes


def _line(error: Any, k: int) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    return max((f.lineno or 0 for f in frames if f.filename == f"<statement {k}>"), default=0)


def _borrows(v: Any) -> bool:
    # PyTorch (since 2.13 at the latest) says so of a view without a history of its own.
    try:
        return bool(v._is_view() and v.requires_grad and v.grad_fn is None)
    except RuntimeError:  # it will not tell: a view of no_grad whose base was written
        return True


def _note_values(entries: Any, k: int, variables: Any, flags: bool, before: Any) -> None:
    for n, v in variables:
        entries.append((f"{k} {n}", _described(v)))
        if flags:
            entries.append((f"{k} {n} flags", (v.requires_grad, v.is_leaf)))
        if before is not None and n in before:
            entries.append((f"{k} {n} version rose", v._version > before[n]))


def _note_gradients(entries: Any, k: int, variables: Any) -> None:
    for n, v in variables:
        if v.is_leaf or v.retains_grad:
            entries.append((f"{k} {n}.grad", None if v.grad is None else _described(v.grad)))
        entries.append((f"{k} {n} flags", (v.requires_grad, v.is_leaf, v.retains_grad)))


def make(seed: int, noisy: bool = False) -> Program:
    """A random program; the same for the same seed."""
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES)
    maker = Maker(seed, dtype, noisy)
    program = Program(seed, dtype, [], rng.random() < 0.5)
    space = names_for(lt, dtype)
    length = rng.randrange(8, 22)
    for _ in range(3 * length):
        if len(program.statements) >= length:
            break
        text = maker.statement(space)
        broken = False
        try:
            exec(text, space)
        except (NameError, AttributeError, SyntaxError, TypeError, IndexError, ValueError):
            broken = True
        except Exception:  # refused by a rule of autograd or of shapes: some of these stay
            broken = rng.random() < 0.8 and "leaf" not in text
        if broken and "\n" not in text:
            continue
        program.statements.append(text)
        if any(v.numel() and not _moderate(v) for _, v in _variables(space, lt)):
            program.statements.pop()
            break
    lt.set_grad_enabled(True)
    program.statements += _last_words(rng, space)
    space.clear()
    return program


def _moderate(v: Any) -> bool:
    return bool(np.max(np.abs(numbers(v).astype("f8"))) < LARGEST)


def _last_words(rng: random.Random, space: Any) -> list[str]:
    # A loss of some variables, so that nearly every program has gradients.
    names = [n for n, v in _variables(space, lt) if v.is_floating_point()]
    want = [n for n in names if space[n].requires_grad] or names
    some = sorted(rng.sample(want, min(3, len(want))))
    terms = [f"({n} * N({tuple(space[n].shape)}, {k})).sum()" for k, n in enumerate(some)]
    return [f"({' + '.join(terms)}).backward()"] if terms else []


def differences(ours: Notes, theirs: Notes, program: Program, exact: bool = False) -> list[str]:
    """Where two runs differ, the first first."""
    found = []
    rough = _roughest(program)
    for (what, a), (other, b) in zip(ours.entries, theirs.entries, strict=False):
        if what != other:
            return [*found, f"order: {what}, {other}"]
        if not _alike(what, a, b, rough, exact):
            found.append(f"{what}: {_shown(a)} | {_shown(b)}")
    if len(ours.entries) != len(theirs.entries) and not found:
        found.append(f"length: {len(ours.entries)}, {len(theirs.entries)}")
    return found


def _roughest(program: Program) -> str:
    text = program.dtype + " ".join(program.statements)
    return next((d for d in ("bfloat16", "float16") if d in text), None) or (
        "float32" if "float32" in text or "float()" in text else "float64"
    )


def _alike(what: str, a: Any, b: Any, rough: str, exact: bool) -> bool:
    if what.endswith("raised"):
        return (a is None) == (b is None) and (
            a is None
            or issubclass(a, b)
            or issubclass(b, a)
            or {a, b} == {IndexError, RuntimeError}
        )
    if not (isinstance(a, tuple) and len(a) == 3 and isinstance(a[2], np.ndarray)):
        return type(a) is type(b) and a == b
    if b is None or a[:2] != b[:2]:
        return False
    x, y = a[2], b[2]
    if exact:
        return x.tobytes() == y.tobytes()
    if x.dtype.kind not in "fc":
        return bool(np.array_equal(x, y))
    if not x.size:
        return True
    rtol, atol = tolerance(getattr(lt, rough))
    finite = np.abs(y[np.isfinite(y)].astype("f8"))
    scale = max(1.0, float(finite.max(initial=0)))
    # Roundings of a whole program, not of one op.
    times = {"float64": 1, "float32": 8}.get(rough, 32)
    return np.allclose(
        x.astype("f8"), y.astype("f8"), rtol * times, atol * times * scale, equal_nan=True
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], np.ndarray):
        return f"{value[0]}{list(value[1])} {np.array2string(value[2].ravel()[:6], precision=6)}"
    return getattr(value, "__name__", repr(value))


OVERLAP = "single memory location"
MUTATED = "modified by an inplace operation"


def beside(program: Program, other: Any, ours: Notes | None = None) -> tuple[list[str], str]:
    """How a run on lowtide differs from one on PyTorch.

    Returns:
        The differences, and what was refused by one of the two where both are right ("" if
        nothing was). Where an op in place destroys what its own gradient needs, PyTorch refuses
        the backward and lowtide has kept a copy: PyTorch's gradients with
        ``allow_mutation_on_saved_tensors`` are compared then.
    """
    ours = ours or run(program, lt)
    try:
        found, why = _judged(ours, run(program, other), program)
        if why == MUTATED:
            with other.autograd.graph.allow_mutation_on_saved_tensors():
                theirs = run(program, other)
            found, again = _judged(ours, theirs, program)
            why = again or "kept a copy where PyTorch refuses"
    except RuntimeError as error:  # PyTorch refuses to be asked for a flag of such a view
        if "view was created in no_grad mode" not in str(error):
            raise
        return [], "PyTorch will not tell of a view made under no_grad"
    return found, why


def _judged(ours: Notes, theirs: Notes, program: Program) -> tuple[list[str], str]:
    found = differences(ours, theirs, program)
    if any("create_graph" in text for text in program.statements):
        # A gradient that is constant: PyTorch says that it requires grad, lowtide does not.
        found = [d for d in found if "flags: (False, True) | (True, False" not in d]
    places = {d.partition(":")[0] for d in found}
    for what in dict.fromkeys([*ours.messages, *theirs.messages]):
        a, b = ours.messages.get(what, ""), theirs.messages.get(what, "")
        same = a and b and a.partition(":")[0] == b.partition(":")[0]
        if same or not found:
            continue
        first = _statement(found[0])
        if _statement(what) > first:
            continue
        if "cannot resize variables that require grad" in a:
            return [], "resize by out= refused by lowtide"
        if "flowed into the checkpointed region" in a:
            return [], "region whose input was written since, refused by lowtide"
        if OVERLAP in a or OVERLAP in b:
            return [], "overlap refused by " + ("lowtide" if OVERLAP in a else "PyTorch")
        places.add(what if found[0].startswith("order") else "")
        if MUTATED in b and what in places:
            return [], MUTATED
        if (
            MUTATED in a and what in places
        ):  # another value is kept than PyTorch's: nothing is wrong
            return [], "refused by lowtide: it had kept another value than PyTorch"
    if found and theirs.borrowed:
        return [], "view that PyTorch says requires grad as its base does"
    return found, ""


def _statement(what: str) -> int:
    number = re.search(r"(\d+) (?:v|raised|order)", what)
    return int(number.group(1)) if number else 1 << 30


def alone(program: Program, first: Notes | None = None) -> list[str]:
    """How runs on lowtide differ from one another, and what one leaves behind.

    Args:
        program: What to run.
        first: Takes the notes of the first run.
    """
    gc.collect()
    gc.disable()
    try:
        noted = run(program, lt)
        first = noted if first is None else _into(first, noted)
        again = run(program, lt)
        plain = run(program, lt, direct=True)
    finally:
        gc.enable()
    found = [f"twice: {d}" for d in differences(first, again, program, exact=True)]
    # A region makes each value again as it was when it was read, so it refuses less; and it reads
    # its inputs once more, so it refuses what was written outside of it since.
    refused = set(first.messages.items()) ^ set(plain.messages.items())
    if not any(MUTATED in m or "flowed into the checkpointed region" in m for _, m in refused):
        found += [f"checkpointed: {d}" for d in differences(first, plain, program, exact=True)]
    for notes in (first, again, plain):
        if notes.left:
            found.append(f"{notes.left} bytes are left")
        if not notes.grad_mode:
            found.append("grad mode is left off")
    return found


def _into(notes: Notes, found: Notes) -> Notes:
    notes.__dict__.update(found.__dict__)
    return notes


def shrunk(program: Program, check: Any) -> Program:
    """A program with as few statements as still differ in the same way."""

    def sort_of(found: list[str]) -> str:
        return re.sub(r"\bv?\d+(\.\d+)?\b|\[.*", "", found[0].partition("|")[0])[:24]

    found = check(program)
    if not found:  # once only
        return program
    wanted = sort_of(found)
    k = len(program.statements) - 1
    while k >= 0:
        rest = program.statements[:k] + program.statements[k + 1 :]
        tried = Program(program.seed, program.dtype, rest, program.eager)
        found = check(tried)
        if found and sort_of(found) == wanted:
            program = tried
        k -= 1
    return program


def _only_differences(program: Program, other: Any) -> list[str]:
    return beside(program, other)[0]


def main() -> int:
    """Run many and print a summary by outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="lowtide beside itself only")
    parser.add_argument("--show", type=int, default=20, help="differences to shrink and print")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch = None
    if not args.alone:
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
    count: collections.Counter[str] = collections.Counter()
    for seed in range(args.seed, args.seed + args.count):
        program = make(seed, noisy=torch is None)
        check, notes = alone, Notes()
        found = alone(program, notes)
        if torch is not None and not found:
            check = functools.partial(_only_differences, other=torch)
            found, why = beside(program, torch, notes)
            count[why] += bool(why)
        count["programs"] += 1
        count["statements"] += len(program.statements)
        count["with gradients compared"] += notes.gradients > 0
        count["with second order"] += notes.second > 0
        count["with checkpointed regions"] += notes.regions > 0
        count["with refused statements"] += notes.raised > 0
        count["hook calls"] += notes.hooks
        count["entries compared"] += len(notes.entries)
        count[f"of {program.dtype}"] += 1
        count["that differ"] += bool(found)
        if found and count["that differ"] <= args.show:
            small = shrunk(program, check)
            print(f"--- seed {seed}: {found[0]}\n    shrunk: {(check(small) or ['?'])[0]}")
            print(small.text("lowtide"), flush=True)
        if (seed - args.seed) % 250 == 249 or seed == args.seed + args.count - 1:
            print("\n".join(f"{n:8} {what}" for what, n in count.items() if what), flush=True)
    return int(count["that differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
