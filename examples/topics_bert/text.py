"""The text that the topic classifier reads: the manual's topics, cut into windows of word pieces.

The text is what `pydoc` ships for `help("topics")`, so nothing is downloaded. Each topic is cut into blocks of 128
words; every fourth block is held out for the test, and no window of the training text touches it.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np

TOPICS = ("specialnames", "formatstrings", "string-methods", "typesseq", "typesmapping", "debugger")
SPECIALS = ("[PAD]", "[CLS]", "[UNK]", "[MASK]")
PAD, CLS, UNK, MASK = range(len(SPECIALS))

LENGTH = 96
SHORTEST = 60
BLOCK = 128
STEP = 10
HELD_OUT = 4
WORDS = 1200
ENDINGS = 200

_WORD = re.compile(r"[a-z]+|[^\sa-z]")


@dataclass(frozen=True)
class Vocabulary:
    """Word pieces and their numbers: whole words, single characters, and endings, written with `##`."""

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, words: list[str]) -> Vocabulary:
        """The most frequent words and endings, and every character, so that few words are unknown."""
        counts = Counter(words)
        endings: Counter[str] = Counter()
        for word, count in counts.items():
            for size in range(2, min(5, len(word))):
                endings[f"##{word[-size:]}"] += count
        characters = sorted({character for word in counts for character in word})
        frequent = [word for word, _ in _most(counts, WORDS)] + [ending for ending, _ in _most(endings, ENDINGS)]
        pieces = [*SPECIALS, *characters, *(f"##{character}" for character in characters), *frequent]
        return cls(tuple(dict.fromkeys(pieces)))

    def encode(self, words: list[str]) -> list[int]:
        """The pieces of these words: the longest that fits, then the longest that continues it, and so on."""
        numbers = {piece: number for number, piece in enumerate(self.pieces)}
        return [number for word in words for number in _pieces(word, numbers)]


def _most(counts: Counter[str], size: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]


def _pieces(word: str, numbers: dict[str, int]) -> list[int]:
    found: list[int] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in numbers), None)
        if end is None:
            return [UNK]
        found.append(numbers[prefix + word[start:end]])
        start = end
    return found


@dataclass(frozen=True)
class Text:
    """Runs of pieces by topic: `train` to draw windows from, `test` of which no training window has a piece."""

    vocabulary: Vocabulary
    train: tuple[tuple[np.ndarray, ...], ...]
    test: tuple[tuple[np.ndarray, ...], ...]


def read() -> Text:
    """The topics as pieces; the vocabulary is made of the training text alone."""
    words = [_WORD.findall(topics[topic].lower()) for topic in TOPICS]
    vocabulary = Vocabulary.of([word for text in words for run in _runs(text)[0] for word in run])
    encoded = [[[np.array(vocabulary.encode(run)) for run in part] for part in _runs(text)] for text in words]
    return Text(vocabulary, tuple(tuple(part[0]) for part in encoded), tuple(tuple(part[1]) for part in encoded))


def _runs(words: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The words of the training text between held-out blocks, and the held-out blocks."""
    stride = BLOCK * HELD_OUT
    train = [words[start : start + stride - BLOCK] for start in range(0, len(words), stride)]
    test = [words[start + stride - BLOCK : start + stride] for start in range(0, len(words), stride)]
    return train, [block for block in test if len(block) == BLOCK]


def window(run: np.ndarray, start: int, length: int) -> np.ndarray:
    """`length` pieces of a run behind [CLS], padded to the length that the model takes."""
    row = np.full(LENGTH, PAD, np.int64)
    row[0] = CLS
    pieces = run[start : start + length]
    row[1 : 1 + len(pieces)] = pieces
    return row


def draw(text: Text, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random windows of the training text and their topics, every topic equally often."""
    labels = np.arange(rows) % len(TOPICS)
    return np.stack([_draw(text.train[label], rng) for label in labels]), labels


def _draw(runs: tuple[np.ndarray, ...], rng: np.random.Generator) -> np.ndarray:
    sizes = np.array([len(run) for run in runs])
    run = runs[rng.choice(len(runs), p=sizes / sizes.sum())]
    length = int(rng.integers(SHORTEST, LENGTH))
    return window(run, int(rng.integers(0, max(1, len(run) - length + 1))), length)


def held_out(text: Text, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four windows of every held-out block, `STEP` pieces apart, and their topics."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for label, blocks in enumerate(text.test):
        for block in blocks:
            for start in range(0, BLOCK - LENGTH, STEP):
                rows.append(window(block, start, int(rng.integers(SHORTEST, LENGTH))))
                labels.append(label)
    return np.stack(rows), np.array(labels)
