"""WordPiece: words cut into the longest pieces that a vocabulary knows.

Source: Wu et al. 2016 (the idea); the rules of cleaning are those of BERT's uncased vocabulary.
"""

from __future__ import annotations

import unicodedata

START, END, UNKNOWN, PAD = "[CLS]", "[SEP]", "[UNK]", "[PAD]"
LONGEST_WORD = 100  # characters; longer ones are unknown
CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Turns texts into numbers.

    Args:
        vocabulary: One piece a line, in order; pieces inside a word begin with ``##``.
    """

    def __init__(self, vocabulary: str) -> None:
        self.number = {piece: k for k, piece in enumerate(vocabulary.splitlines())}
        self.pad = self.number[PAD]

    def __len__(self) -> int:
        return len(self.number)

    def encode(self, text: str, longest: int) -> list[int]:
        """The numbers of a text's pieces, cut to ``longest``, between start and end."""
        pieces: list[int] = []
        for word in words(text):
            pieces += self._pieces(word)
            if len(pieces) >= longest - 2:
                break
        return [self.number[START], *pieces[: longest - 2], self.number[END]]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self.number[UNKNOWN]]
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):  # the longest piece first
                piece = ("##" if start else "") + word[start:end]
                if piece in self.number:
                    found.append(self.number[piece])
                    start = end
                    break
            else:
                return [self.number[UNKNOWN]]
        return found


def words(text: str) -> list[str]:
    """Lower-case words without accents; each punctuation mark is a word."""
    out = []
    for character in unicodedata.normalize("NFD", text.lower()):
        category, code = unicodedata.category(character), ord(character)
        if category == "Mn":  # an accent
            continue
        if character in "\t\n\r" or category == "Zs":
            out.append(" ")
        elif code == 0 or code == 0xFFFD or category.startswith("C"):
            continue
        elif _is_punctuation(code, category) or any(a <= code <= b for a, b in CJK):
            out.append(f" {character} ")
        else:
            out.append(character)
    return "".join(out).split()


def _is_punctuation(code: int, category: str) -> bool:
    ascii_marks = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_marks or category.startswith("P")
