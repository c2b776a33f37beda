"""What people save beside tensors: plain objects, their own classes, whole modules."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import importlib
import io
import json
import pathlib
import pickle
import random
import types
import zipfile
from typing import Any, NamedTuple

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.serialization import own_classes
from lowtide.framework.serialization.json_structure import Encoder
from lowtide.framework.serialization.safetensors import write
from lowtide.framework.serialization.save_load import FORMAT, STRUCTURE, VERSION


def saved(value):
    file = io.BytesIO()
    lt.save(value, file)
    file.seek(0)
    return file


def again(value, **options):
    return lt.load(saved(value), **options)


def file_of(node, encoder=None):
    encoder, file = encoder or Encoder(), io.BytesIO()
    write(file, encoder.arrays, {FORMAT: VERSION, STRUCTURE: json.dumps(node)})
    file.seek(0)
    return file


class Color(enum.Enum):
    RED = (1, 2)
    GREEN = "green"


class Level(enum.IntEnum):
    LOW, HIGH = 1, 2


class Word(enum.StrEnum):
    YES = "y"


class Flags(enum.Flag):
    A, B, C = 1, 2, 4


calls: list[str] = []


@dataclasses.dataclass
class Config:
    lr: Any
    name: Any = None

    def __init__(self, lr: Any, name: Any = None) -> None:
        calls.append("init")
        self.lr, self.name = lr, name

    def __setattr__(self, name: str, value: Any) -> None:
        calls.append("setattr")
        object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    a: Any
    b: Any = 0


class Pair(NamedTuple):
    first: Any
    second: Any


class Outer:
    @dataclasses.dataclass
    class Inner:
        a: Any


OWN = [Color, Level, Word, Flags, Config, Frozen, Slots, Pair, Outer.Inner]


def keys(rng):
    return rng.sample(
        [1, -5, 2.5, "a", "$", None, True, (1, "x"), b"raw", 1 << 70], rng.randint(0, 4)
    )


def plain(rng, inner):
    """One object of the standard library or NumPy."""
    r = rng.randint
    zone = datetime.timezone(datetime.timedelta(minutes=r(-900, 900)), *rng.choice([(), ("x",)]))
    return rng.choice([
        lambda: argparse.Namespace(**{f"a{k}": v for k, v in enumerate(inner())}),
        lambda: types.SimpleNamespace(**{f"a{k}": v for k, v in enumerate(inner())}),
        lambda: collections.defaultdict(
            rng.choice([None, int, float, list, dict, set, tuple, str, bool, collections.Counter]),
            dict.fromkeys(keys(rng), inner()),
        ),
        lambda: collections.OrderedDict.fromkeys(keys(rng), 1),
        lambda: collections.Counter({k: r(-3, 9) for k in keys(rng)}),
        lambda: collections.deque(inner(), rng.choice([None, 2, 7])),
        lambda: pathlib.Path(*rng.sample(["/", "a", "b c", "ä.pt", ".."], r(0, 4))),
        lambda: pathlib.PurePosixPath("x", "y"),
        lambda: pathlib.PureWindowsPath("c:\\x", "y"),
        lambda: frozenset(keys(rng)),
        lambda: set(keys(rng)),
        lambda: complex(r(-9, 9), r(-9, 9)),
        lambda: slice(*rng.choice([(None, 3, None), (1, 2, 3), ("a", None, 2)])),
        lambda: range(r(-9, 9), r(-9, 99), rng.choice([-3, 1, 2])),
        lambda: datetime.datetime(
            r(1, 9999), r(1, 12), r(1, 28), r(0, 23), r(0, 59), r(0, 59), r(0, 999_999),
            rng.choice([None, zone, datetime.UTC]), fold=r(0, 1),
        ),
        lambda: datetime.date(r(1, 9999), r(1, 12), r(1, 28)),
        lambda: datetime.time(r(0, 23), r(0, 59), r(0, 59), 7, rng.choice([None, zone]), fold=1),
        lambda: datetime.timedelta(r(-999, 999), r(0, 9), r(0, 9)),
        lambda: zone,
        lambda: np.dtype(rng.choice("?bBhHiIlLefdFD")).type(r(0, 1)),
        lambda: rng.choice([np.str_("text"), np.bytes_(b"raw")]),
        lambda: np.arange(r(0, 6)).astype(rng.choice(["?", "i1", "<u2", "f4", "f8", "c16"])),
        lambda: random.Random(r(0, 99)).getstate(),
        lambda: np.random.RandomState(r(0, 99)).get_state(),
        lambda: lt.get_rng_state(),
        lambda: bytearray(bytes(range(r(0, 9)))),
    ])()  # fmt: skip


def own(rng, inner):
    """One object of the classes above."""
    a, b = (*inner(), 1, None)[:2]
    return rng.choice(
        [
            lambda: rng.choice(list(Color)),
            lambda: Level.HIGH,
            lambda: Word.YES,
            lambda: rng.choice([Flags.A, Flags.A | Flags.C, Flags(0)]),
            lambda: Config(a, b),
            lambda: Frozen(a, b),
            lambda: Slots(a),
            lambda: Pair(a, b),
            lambda: Outer.Inner(a),
        ]
    )()


def draw(rng, make, depth=0):
    def inner():
        return [draw(rng, make, depth + 1) for _ in range(rng.randint(0, 3 - depth))]

    if depth and rng.random() < 0.2:
        return rng.choice([inner(), tuple(inner()), {"k": inner()}, 1.5, "text", None, True])
    return make(rng, inner)


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, (np.ndarray, lt.Tensor)):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, (argparse.Namespace, types.SimpleNamespace)):
        same(vars(a), vars(b))
    elif isinstance(a, dict):
        assert [(k, type(k)) for k in a] == [(k, type(k)) for k in b]
        for k in a:
            same(a[k], b[k])
        assert getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
        assert getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
    elif isinstance(a, slice):
        same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    else:
        assert a == b
        for name in ("fold", "tzinfo"):
            assert getattr(a, name, None) == getattr(b, name, None)


def test_plain_objects_come_back_as_what_they_were() -> None:
    rng, kinds = random.Random(1), set()
    for _ in range(400):
        value = draw(rng, plain)
        kinds.add(type(value))
        same(again({"v": value})["v"], value)
    assert len(kinds) > 25


def test_objects_of_own_classes_come_back_where_they_are_allowed() -> None:
    rng, kinds = random.Random(2), set()
    for k in range(300):
        value = draw(rng, own)
        kinds.add(type(value))
        calls.clear()
        file = saved({"v": value})
        options = {"allow": OWN} if k % 2 else {"weights_only": False}
        same(lt.load(file, **options)["v"], value)
        assert calls == []
        file.seek(0)
        with pytest.raises(lt.SerializationError, match=r"Pass allow=\[\w+\], or weights_only=Fal"):
            lt.load(file)
    assert kinds == set(OWN)


def test_the_default_load_names_the_class_and_what_to_save() -> None:
    for value, name, instead in (
        (Color.RED, "Color", r"x\.name"),
        (Config(1), "Config", r"dataclasses\.asdict\(x\)"),
        (Pair(1, 2), "Pair", r"x\._asdict\(\)"),
        (nn.ReLU(), "ReLU", r"x\.state_dict\(\)"),
    ):
        for options in ({}, {"weights_only": True}, {"allow": []}):
            with pytest.raises(
                lt.SerializationError, match=rf"{name}.*allow=\[{name}\].*save {instead} instead"
            ):
                again([value], **options)


def test_only_the_classes_allowed_are_built() -> None:
    with pytest.raises(lt.SerializationError, match=r"allow=\[Pair\]"):
        again([Color.RED, Pair(1, 2)], allow=[Color])
    with pytest.raises(TypeError, match="Pass the class itself"):
        again([Color.RED], allow=["Color"])

    @dataclasses.dataclass
    class Local:
        a: int

    assert again(Local(3), allow=[Local]) == Local(3)
    with pytest.raises(lt.SerializationError, match="a class inside of a function"):
        again(Local(3), weights_only=False)


def test_one_object_met_twice_is_one_again() -> None:
    shared = Config(lt.ones(2))
    a, b, c = again([shared, Frozen(shared, 1), shared.lr], allow=OWN)
    assert a is b.a
    assert a.lr is c


class Counted(dict):
    pass


@dataclasses.dataclass
class Pickled:
    a: int

    def __getstate__(self) -> Any:
        return 3


def test_what_no_load_could_build_is_refused_when_it_is_saved() -> None:
    lost = collections.namedtuple("Lost", "x")
    layer = nn.Linear(1, 1)
    layer.register_forward_hook(lambda *_: None)
    stated = nn.Linear(1, 1)
    stated.register_load_state_dict_post_hook(lambda *_: None)
    function = nn.Linear(1, 1)
    function.act = lambda x: x
    cycle = Config(None)
    cycle.lr = [cycle]
    cases = [
        (Counted(a=1), r"Counted.*Save dict\(x\)"),
        (Pickled(1), r"Pickled.*defines __getstate__.*dataclasses\.asdict"),
        (lost(1), r"not found as .*:Lost"),
        ({"m": layer}, r"m is a .*Linear\. It has hooks.*state_dict\(\)"),
        (nn.Sequential(stated), r"0 is a .*Linear\. It has hooks"),
        (nn.Linear(1, 1).set_checkpointing(), "activation checkpointing"),
        (nn.Sequential(function), r"0\.act is a builtins\.function.*Save its name"),
        (nn.LazyLinear(2), "lazy|Lazy|Uninitialized"),
        (cycle, "contains itself"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "Parametrized"),
    ]
    for value, message in cases:
        with pytest.raises(lt.SerializationError, match=message):
            lt.save(value, io.BytesIO())


HOSTILE = {
    "a module of tests": ({"$": "dataclass", "class": "this:d", "state": {}}, "no class|no module"),
    "no name": ({"$": "enum", "class": "os.system", "names": []}, "names the class"),
    "a path": ({"$": "enum", "class": "../x:A", "names": []}, "names the class"),
    "a function": ({"$": "dataclass", "class": "os:system", "state": {}}, "no class"),
    "a class of another kind": (
        {"$": "dataclass", "class": "subprocess:Popen", "state": {}}, "which is none",
    ),
    "another place": ({"$": "enum", "class": f"{__name__}:enum.Enum", "names": []}, "no class"),
    "no module": ({"$": "enum", "class": "no_such_module:A", "names": []}, "cannot be imported"),
    "no member": ({"$": "enum", "class": f"{__name__}:Color", "names": ["BLUE"]}, "no member"),
    "a method as a member": (
        {"$": "enum", "class": f"{__name__}:Color", "names": ["__init__"]}, "no member",
    ),
    "two members": (
        {"$": "enum", "class": f"{__name__}:Color", "names": ["RED", "GREEN"]}, "2 members",
    ),
    "too few items": (
        {"$": "namedtuple", "class": f"{__name__}:Pair", "fields": ["first", "second"],
         "items": [1]}, "fields of Pair",
    ),
    "too few fields": (
        {"$": "dataclass", "class": f"{__name__}:Frozen", "state": {"a": 1}}, "has a field 'b'",
    ),
    "a module without registries": (
        {"$": "module", "class": "lowtide.modules.linear:Linear", "state": {}}, "_parameters",
    ),
    "a slot that is none": (
        {"$": "dataclass", "class": f"{__name__}:Slots", "state": {"a": 1, "b": 2, "c": 3}},
        "'c' is none of them",
    ),
    "a module with hooks": (
        {"$": "module", "class": "lowtide.modules.linear:Linear", "state": {"_call_hooks": 1}},
        "has hooks",
    ),
    "a module of a number": (
        {"$": "module", "class": "lowtide.modules.linear:Linear",
         "state": {"_parameters": {"weight": 3}}}, "_parameters",
    ),
    "an attribute that tensors have": (
        {"$": "tensor", "meta": {"shape": [1], "dtype": "float32"}, "attributes": {"grad": 3}},
        "sets the attribute 'grad'",
    ),
    "a function of another place": ({"$": "function", "name": "system"}, "no function of"),
    "a factory": ({"$": "defaultdict", "items": ["os.system", {}]}, "defaultdict is damaged"),
    "a month": ({"$": "date", "items": [2020, 13, 1]}, "month"),
    "a date of texts": ({"$": "date", "items": ["2020", 1, 1]}, "a part is a str"),
    "an unhashable element": ({"$": "frozenset", "items": [[1]]}, "no plain value"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_structure_is_refused(case) -> None:
    node, message = HOSTILE[case]
    with pytest.raises(lt.SerializationError, match=message):
        lt.load(file_of(node), weights_only=False)
    with pytest.raises(lt.SerializationError):
        lt.load(file_of(node))


def test_a_name_in_a_state_is_an_attribute_and_nothing_more() -> None:
    node = {
        "$": "dataclass",
        "class": f"{__name__}:Frozen",
        "state": {"a": 1, "b": 2, "__class__": 3, "__init__": 4},
    }
    got = lt.load(file_of(node), allow=[Frozen])
    assert type(got) is Frozen
    assert (got.a, got.b) == (1, 2)


# Whole modules


class Tied(nn.Module):
    def __init__(self, size: int) -> None:
        calls.append("init")
        super().__init__()
        self.one, self.two = nn.Linear(size, size), nn.Linear(size, size)
        self.two.weight = self.one.weight
        self.again = self.one
        self.register_buffer("steps", lt.tensor(3))
        self.register_buffer("scratch", lt.ones(2), persistent=False)
        self.config = {"sizes": (size, [1]), "out": pathlib.Path("x")}
        self.empty = None
        self.one.bias.no_decay = True
        self.marked = nn.Buffer(lt.ones(1), persistent=False)

    def forward(self, x):
        return self.two(self.again(x)) + self.steps


def layers(rng):
    r = rng.randint
    return rng.choice(
        [
            lambda: nn.Linear(r(1, 4), r(1, 4), bias=rng.random() < 0.5),
            lambda: nn.Conv2d(r(1, 3), r(1, 3), r(1, 3)),
            lambda: nn.BatchNorm1d(r(1, 4)),
            lambda: nn.LSTM(r(1, 3), r(1, 3), r(1, 2)),
            lambda: nn.Embedding(r(1, 5), 2),
            lambda: nn.Dropout(0.3),
            lambda: nn.GELU("tanh"),
            lambda: nn.LayerNorm(r(1, 4)),
            lambda: nn.TransformerEncoderLayer(4, 2, 8),
            lambda: nn.MultiheadAttention(4, 2),
            lambda: Tied(r(1, 4)),
            lambda: nn.ParameterList([lt.ones(r(0, 3))]),
            lambda: nn.ParameterDict({"a": lt.ones(2)}),
            lambda: nn.ModuleList([nn.ReLU(), nn.Linear(1, 1)]),
            lambda: nn.ModuleDict({"x": nn.Tanh()}),
        ]
    )()


def test_whole_modules_come_back() -> None:
    rng = random.Random(5)
    kinds = set()
    for k in range(200):
        model = nn.Sequential(*(layers(rng) for _ in range(rng.randint(1, 3))))
        for module in model.modules():
            module.training = rng.random() < 0.5
        for p in model.parameters():
            p.requires_grad_(rng.random() < 0.7)
        file, state = saved(model), model.state_dict()
        kinds.update(map(type, model.modules()))
        calls.clear()
        got = lt.load(file, **({"weights_only": False} if k % 2 else {"allow": [Tied]}))
        assert calls == []
        assert repr(got) == repr(model)
        assert list(got.state_dict()) == list(state)
        for name, t in got.state_dict().items():
            assert lt.equal(t, state[name]), name
        assert [m.training for m in got.modules()] == [m.training for m in model.modules()]
        assert [(n, p.requires_grad) for n, p in got.named_parameters()] == [
            (n, p.requires_grad) for n, p in model.named_parameters()
        ]
        assert [n for n, _ in got.named_buffers()] == [n for n, _ in model.named_buffers()]
        assert [list(vars(m)) for m in got.modules()] == [list(vars(m)) for m in model.modules()]
    assert len(kinds) > 15


def test_a_model_of_ones_own_computes_and_is_tied_again(leak_check) -> None:
    model = Tied(3)
    x = lt.randn(2, 3)
    expected = model(x)
    live = lt.memory_allocated()
    got = again(model, allow=[Tied])
    assert lt.memory_allocated() - live == 4 * (9 + 3 + 3) + 8 + 8 + 4
    assert lt.equal(got(x), expected)
    assert got.two.weight is got.one.weight
    assert got.again is got.one
    assert "scratch" not in got.state_dict()
    assert got.scratch.tolist() == [1, 1]
    assert got.config == model.config
    assert got.one.bias.no_decay is True
    assert not hasattr(got.two.bias, "no_decay")
    assert type(got.marked) is nn.Buffer
    assert got.marked.persistent is False
    got(x).sum().backward()
    assert got.one.weight.grad.shape == (3, 3)
    roles = {name: t._storage.role for name, t in got.named_buffers()}
    assert roles == {name: t._storage.role for name, t in model.named_buffers()}
    del got, model


def test_a_checkpoint_directory_refuses_what_it_could_not_restore(tmp_path) -> None:
    checkpoints = lt.utils.CheckpointDirectory(tmp_path)
    for value, instead in ((Color.RED, r"x\.name"), (Config(1), r"asdict"), (nn.ReLU(), "state")):
        if not isinstance(value, nn.Module):
            with pytest.raises(lt.SerializationError, match=instead):
                checkpoints.save(1, value=value)
    checkpoints.save(2, args=argparse.Namespace(lr=0.1), out=pathlib.Path("x"))
    got = checkpoints.restore()
    assert got["args"] == argparse.Namespace(lr=0.1)
    assert got["out"] == pathlib.Path("x")
    checkpoints.release()


MANY = {
    "paths": lambda k: pathlib.Path("/data/train", f"image_{k:06}.jpg"),
    "times": lambda k: datetime.datetime(2020, 1, 1) + datetime.timedelta(k),
    "namespaces": lambda k: argparse.Namespace(a=k),
    "numbers": lambda k: np.float32(k),
    "ranges": range,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", MANY)
def test_fifty_thousand_honest_objects_are_loaded(kind) -> None:
    value = [MANY[kind](k) for k in range(50_000)]
    assert again(value) == value
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr("m/data.pkl", pickle.dumps(value, 2))
    file.seek(0)
    assert lt.load(file) == value


# Files that are something else


def test_a_page_or_a_pointer_in_place_of_a_file_is_named() -> None:
    rng = random.Random(0)
    for _ in range(200):
        space = "".join(rng.choices(" \n\r\t", k=rng.randint(0, 5)))
        mark = rng.choice(
            ["<!DOCTYPE html>", "<!doctype HTML PUBLIC>", "<html>", "<HTML lang='en'>"]
        )
        page = (rng.choice(["", "\ufeff"]) + space + mark + "x" * rng.randint(0, 300)).encode()
        with pytest.raises(lt.SerializationError, match="it is a web page .HTML."):
            lt.load(io.BytesIO(page))
        pointer = (
            "version https://git-lfs.github.com/spec/v1\noid sha256:"
            f"{rng.randbytes(32).hex()}\nsize {rng.randrange(10**9)}\n"
        )
        with pytest.raises(lt.SerializationError, match="git LFS pointer.*Run git lfs pull"):
            lt.load(io.BytesIO(pointer.encode()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lowtide.modules.parallel:DataParallel", lt.nn.DataParallel),
        (
            "lowtide.modules.distributed_data_parallel:DistributedDataParallel",
            lt.nn.parallel.DistributedDataParallel,
        ),
        (
            "lowtide.modules.parametrize:ParametrizationList",
            lt.nn.utils.parametrize.ParametrizationList,
        ),
        ("lowtide.modules.linear:Linear", lt.nn.Linear),
    ],
)
def test_a_file_names_a_class_by_where_it_was_when_it_was_saved(old, new):
    assert own_classes.OwnClasses(every=True).find(None, old, "module") is new


def test_every_module_that_moved_is_where_the_table_says():
    for new in own_classes._MOVED.values():
        assert importlib.import_module(new).__name__ == new
