"""Tensors without a graph that pile up: drawn loops, counted by the ledger when they are dropped.

A case draws what is kept (an output, a part of it, an array, a batch, a gradient), where (a list, a
dict, a hook's closure, a cache, an exception), and what ends a step. The oracle is the ledger: the
finding's bytes are what it gives back when the container is emptied.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import scopes
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import Finding, MemoryProfiler, detect_retained
from lowtide.profiling.leaks.growing_tensors import GrowingTensors
from tests.profiling.leaks.loops import only, place

WIDTH, OUT, BATCH, STEPS = 6, 5, 16, 6
NUMBERS = BATCH * OUT * 4  # bytes of an output


def live() -> int:
    return int(backend(lt.device("cpu")).ledger.live)


# What is kept of an output, its input and the model, and the bytes that stay for it


KEPT: dict[str, tuple[Callable[[Any, Any, Any], Any], int]] = {
    "detached": (lambda out, x, m: out.detach(), NUMBERS),
    "clone": (lambda out, x, m: out.detach().clone(), NUMBERS),
    "array": (lambda out, x, m: out.detach().numpy(), NUMBERS),
    "part": (lambda out, x, m: out.detach()[:1], NUMBERS),
    "part of an array": (lambda out, x, m: out.detach().numpy()[:1], NUMBERS),
    "batch": (lambda out, x, m: x, BATCH * WIDTH * 4),
    "named": (lambda out, x, m: {"out": out.detach(), "n": 3}, NUMBERS),
    "pair": (lambda out, x, m: (out.detach(), x), NUMBERS + BATCH * WIDTH * 4),
    "double": (lambda out, x, m: out.detach().double(), 2 * NUMBERS),
    "weights": (
        lambda out, x, m: {k: v.clone() for k, v in m.state_dict().items()},
        (WIDTH + 1) * OUT * 4,
    ),
}


class Log:
    def __init__(self) -> None:
        self.kept: list[Any] = []


# Where: a function that keeps a value, and one that empties the container


def _list(model: Any) -> Any:
    kept: list[Any] = []
    return kept.append, kept.clear


def _by_step(model: Any) -> Any:
    kept: dict[int, Any] = {}
    return lambda v: kept.__setitem__(len(kept), v), kept.clear


def _lists_by_name(model: Any) -> Any:
    kept: dict[str, list[Any]] = {"out": []}
    return lambda v: kept["out"].append(v), kept["out"].clear


def _attribute(model: Any) -> Any:
    log = Log()
    return lambda v: log.kept.append(v), log.kept.clear


def _module_attribute(model: Any) -> Any:
    model.kept = []
    return lambda v: model.kept.append(v), model.kept.clear


def _deque(model: Any) -> Any:
    kept: deque[Any] = deque()
    return kept.append, kept.clear


def _cache(model: Any) -> Any:
    waiting: list[Any] = []

    @functools.cache
    def cached(step: int) -> Any:
        return waiting.pop()

    count = itertools.count()

    def keep(value: Any) -> None:
        waiting.append(value)
        cached(next(count))

    return keep, cached.cache_clear


def _chain(model: Any) -> Any:
    kept: list[Any] = [None]

    def keep(value: Any) -> None:
        kept[0] = [value, kept[0]]

    return keep, kept.clear


WHERE = {
    "list": _list,
    "dict": _by_step,
    "dict of lists": _lists_by_name,
    "attribute": _attribute,
    "module attribute": _module_attribute,
    "deque": _deque,
    "cache": _cache,
}
ENDS = ("optimizer", "backward", "manual", "evaluation", "evaluation with a graph")


def run(ends: str, keep: Callable[[Any], None], what: Any, steps: int = STEPS) -> detect_retained:
    """A watched loop whose steps end so; nothing of the last one stays in a variable."""
    model = nn.Linear(WIDTH, OUT)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with detect_retained() as watch:
        for _ in range(steps):
            step(ends, model, optimizer, keep, what)
            if ends == "manual":
                watch.step()
    return watch


def step(ends: str, model: Any, optimizer: Any, keep: Any, what: Any) -> None:
    x = lt.randn(BATCH, WIDTH)
    with lt.set_grad_enabled(ends != "evaluation"):
        out = model(x)
        if ends in ("optimizer", "backward"):
            F.mse_loss(out, lt.zeros_like(out)).backward()
            if ends == "optimizer":
                optimizer.step()
            optimizer.zero_grad()
    keep(what(out, x, model))


def check(kept: str, where: str, ends: str) -> None:
    what, nbytes = KEPT[kept]
    keep, empty = WHERE[where](nn.Identity())
    watch = run(ends, keep, what)
    finding = only(watch)
    assert not finding.graph
    assert finding.nodes == 0
    assert finding.growth_bytes_per_step == nbytes, watch.report()
    if kept.startswith("part"):
        assert ".clone()" in finding.fix
    before = live()
    empty()
    assert before - live() == finding.bytes
    assert finding.bytes == STEPS * nbytes


QUICK = [
    ("detached", "list", "optimizer"),
    ("array", "dict", "evaluation"),
]


@pytest.mark.deep
@pytest.mark.parametrize(("kept", "where", "ends"), QUICK)
def test_what_piles_up_is_counted_to_the_byte(kept: str, where: str, ends: str) -> None:
    check(kept, where, ends)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2))
def test_drawn_containers_are_counted_to_the_byte(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(10):
        case = drawn.choice(list(KEPT)), drawn.choice(list(WHERE)), drawn.choice(ENDS)
        if case[0] == "batch" and case[2] == "evaluation with a graph":
            continue
        try:
            check(*case)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


# What does not pile up


def _number(kept: list[Any], value: Any, k: int) -> None:
    kept.append(value.mean())


def _bounded(kept: list[Any], value: Any, k: int) -> None:
    if not kept:
        kept.append(deque(maxlen=100))  # still filling when the loop ends
    kept[0].append(value)


def _popped(kept: list[Any], value: Any, k: int) -> None:
    kept.append(value)
    del kept[:-3]


def _cleared(kept: list[Any], value: Any, k: int) -> None:
    if k % 7 == 6:
        kept.clear()
    kept.append(value)


def _last_and_best(kept: list[Any], value: Any, k: int) -> None:
    if not kept:
        kept.append({})
    kept[0]["last"] = value
    if k % 3 == 0:
        kept[0]["best"] = value


def _sum(kept: list[Any], value: Any, k: int) -> None:
    kept[:] = [kept[0] + value if kept else value]


def _ring(kept: list[Any], value: Any, k: int) -> None:
    if not kept:
        kept.extend([None] * 4)
    kept[k % 4] = value


def _once(kept: list[Any], value: Any, k: int) -> None:
    if k < 3:
        kept.append(value)


CLEAN = [_number, _bounded, _popped, _cleared, _last_and_best, _sum, _ring, _once]


def check_clean(body: Any, ends: str, steps: int) -> None:
    kept: list[Any] = []
    count = itertools.count()

    def keep(value: Any) -> None:
        body(kept, value, next(count))

    watch = run(ends, keep, lambda out, x, m: out.detach(), steps)
    assert watch.findings == [], f"{body.__name__} {ends} {steps}: {watch.report()}"
    assert kept


@pytest.mark.deep
def test_a_window_does_not_pile_up() -> None:
    check_clean(_popped, "optimizer", 16)


@pytest.mark.deep
@pytest.mark.parametrize("body", CLEAN)
@pytest.mark.parametrize("ends", ENDS)
def test_what_is_bounded_does_not_pile_up(body: Any, ends: str) -> None:
    place = CLEAN.index(body) + list(ENDS).index(ends)
    check_clean(body, ends, (16, 23)[place % 2])


# What is said


def test_lines_name_and_advice() -> None:
    model = nn.Linear(WIDTH, OUT)
    outputs = []
    watch = detect_retained(warn=True)

    def loop() -> None:
        with watch, lt.no_grad():
            for k in range(9):
                out = model(lt.randn(BATCH, WIDTH))  # made
                outputs.append(out)  # kept
                if k == 6:
                    assert watch.findings == []  # an epoch's outputs, for all that one knows

    with pytest.warns(UserWarning, match="list: `outputs.*of tensors without a graph, made at"):
        loop()
    finding = only(watch)
    here = test_lines_name_and_advice
    assert finding.line.endswith(place(here, "made"))
    assert finding.kept_at is not None
    assert finding.kept_at.endswith(place(here, "kept"))
    assert finding.root == "`outputs[1]`, local variable of loop()"
    assert (finding.kind, finding.growth_bytes_per_step) == ("list", NUMBERS)
    assert finding.bytes == 8 * NUMBERS  # the ninth has a variable's name, too
    assert "(.item())" in finding.fix
    assert "clear outputs" in finding.fix
    assert watch.report().startswith("Tensors without a graph pile up in 1 place (8 steps watched)")


@pytest.mark.deep
def test_a_hook_that_gathers_features() -> None:
    model, features = nn.Sequential(nn.Linear(WIDTH, OUT), nn.Tanh()), []

    def gather(module: Any, args: Any, out: Any) -> None:
        features.append(out.detach())  # kept

    model[1].register_forward_hook(gather)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler(leaks=True) as prof:
        for _ in range(6):
            step("optimizer", model, optimizer, lambda value: None, lambda out, x, m: out)
    (finding,) = prof.findings
    assert not finding.graph
    assert finding.kept_at is not None
    assert finding.kept_at.endswith(place(test_a_hook_that_gathers_features, "kept"))
    assert finding.growth_bytes_per_step == NUMBERS
    assert "ensors without a graph pile up in 1 place" in prof.report()


@pytest.mark.deep
@pytest.mark.parametrize("recording", [False, True])
def test_an_exception_whose_traceback_ends_in_lowtide(recording: bool) -> None:
    model, errors = nn.Linear(WIDTH, OUT), []
    with detect_retained() as watch, lt.set_grad_enabled(recording):
        for _ in range(STEPS):
            try:
                lt.matmul(model(lt.randn(BATCH, WIDTH)), lt.ones(OUT + 2, 3))
            except RuntimeError as error:
                errors.append(error)  # kept
    finding = only(watch)
    assert (finding.kind, finding.graph) == ("exception", recording)
    assert finding.root.startswith("`errors[")
    assert "by the traceback of it" in finding.root
    assert "str(error)" in finding.fix
    before = live()
    errors.clear()
    assert before - live() == finding.bytes


@pytest.mark.deep
def test_graphs_and_tensors_side_by_side_sum_to_the_ledger() -> None:
    model, losses, outputs = nn.Linear(WIDTH, OUT), [], []
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)

    def body() -> None:
        out = model(lt.randn(BATCH, WIDTH))
        loss = out.tanh().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        outputs.append(out.detach())

    with detect_retained() as watch:
        for _ in range(STEPS):
            body()
    assert sorted(f.graph for f in watch.findings) == [False, True]
    assert watch.report().startswith(
        "1 graph survives its step, and tensors without a graph pile up in 1 place"
    )
    before = live()
    losses.clear()
    outputs.clear()
    assert before - live() == sum(f.bytes for f in watch.findings)


def test_a_finding_of_an_older_file_is_one_of_a_graph() -> None:
    fields = dict.fromkeys(Finding.__dataclass_fields__, 0)
    del fields["graph"]
    assert Finding(**fields).graph  # type: ignore[arg-type]


@pytest.mark.deep
def test_a_look_that_fails_leaves_nobody_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, *_: Any) -> Any:
        raise MemoryError

    ledger, kept = backend(lt.device("cpu")).ledger, []
    before = ledger.observers

    def watched() -> None:
        with detect_retained() as watch:
            for _ in range(3):
                kept.append(lt.ones(100))
                watch.step()
            assert ledger.observers != before  # it notes lines
            monkeypatch.setattr(GrowingTensors, "look", fails)

    with pytest.raises(MemoryError):
        watched()
    assert ledger.observers == before
    assert not scopes.listening()
