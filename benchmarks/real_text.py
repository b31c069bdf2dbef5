"""Real text and a GPT-2-size tokenizer for benchmarks, out of what lies on the machine; made once, kept in out/bench.

Text is the sources, readmes and documentation of the interpreter, its packages and the system, each file once, in a
seeded order; the vocabulary is a byte-level BPE of 50,257 entries trained on a part of it.
"""

import hashlib
import json
import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FOLDER = Path("out/bench")
EOD = "<|endoftext|>"
VOCABULARY = 50_257
ENDINGS = {".py", ".pyi", ".md", ".rst", ".txt", ".h", ".html", ".js", ".ts", ".c"}
PLACES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"], "/usr/share/doc", "/usr/include")
LARGEST_CHARS = 2_000_000


def texts() -> Iterator[str]:
    """Every distinct text file of the places, in a seeded order."""
    files = sorted(
        Path(folder, name)
        for place in PLACES
        for folder, _, names in os.walk(place)
        for name in names
        if Path(name).suffix in ENDINGS
    )
    random.Random(1).shuffle(files)
    seen = set()
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if text.strip() and len(text) <= LARGEST_CHARS and digest not in seen:
            seen.add(digest)
            yield text


def corpus(megabytes: int) -> Path:
    """A JSONL file of about so many megabytes.

    Raises:
        SystemExit: the machine does not hold so much text.
    """
    path = FOLDER / f"text-{megabytes}.jsonl"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    size = 0
    with partial.open("wb") as file:
        for text in texts():
            line = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
            file.write(line)
            size += len(line)
            if size >= megabytes * 1_000_000:
                partial.rename(path)
                return path
    raise SystemExit(f"only {size / 1e6:.0f} MB of text found below {', '.join(PLACES)}; {megabytes} MB are needed")


def tokenizer(source: Path) -> Path:
    """A `tokenizer.json` of GPT-2's size, trained on the first 30 MB of `source`."""
    path = FOLDER / "tokenizer.json"
    if path.exists():
        return path
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[EOD], initial_alphabet=alphabet)

    def sample() -> Iterator[str]:
        size = 0
        with source.open(encoding="utf-8") as file:
            for line in file:
                size += len(line)
                if size > 30_000_000:
                    return
                yield json.loads(line)["text"]

    bpe.train_from_iterator(sample(), trainer)
    bpe.save(str(path))
    return path
