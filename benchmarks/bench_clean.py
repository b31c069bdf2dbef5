"""What cleaning costs, beside datatrove's filters and a loop with the reference tokenizer; CPU-seconds in one process.

Every part is run on the same documents in one run: Gristmill's families of rules alone and together with all else that
a text goes through (language, exact deduplication, tokenizing), datatrove's four filter classes with their default
tokenizer and with a regex word splitter (in the interpreter that --datatrove names), `tokenizers.encode_batch_fast`.
The slow ones see a prefix of the corpus; all figures are per MB of text.

    python benchmarks/bench_clean.py [--megabytes 110] [--datatrove PYTHON]
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import real_text
import xxhash
from tokenizers import Tokenizer

from gristmill.formats.clean_settings import (
    C4Settings,
    CleanSettings,
    FineWebSettings,
    GopherQualitySettings,
    GopherRepetitionSettings,
    LanguageSettings,
)
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.records import Batch, RecordAccount
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer

FAMILIES: dict[str, Any] = {
    "gopher_repetition": GopherRepetitionSettings(),
    "gopher_quality": GopherQualitySettings(),
    "c4": C4Settings(),
    "fineweb": FineWebSettings(),
}
# Run where datatrove is installed. Each filter is asked about every document, as it is when none came before it.
THEIRS = r"""
import json, re, sys, time
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter,
)
from datatrove.utils.word_tokenizers import WordTokenizer

class Regex(WordTokenizer):
    words = re.compile(r"\w+|[^\w\s]")
    ends = re.compile(r"[.!?]+\s")
    def word_tokenize(self, text):
        return self.words.findall(text)
    def sent_tokenize(self, text):
        return self.ends.split(text)
    def span_tokenize(self, text):
        stops = [match.end() for match in self.ends.finditer(text)] + [len(text)]
        return list(zip([0] + stops[:-1], stops))

path, megabytes, way = sys.argv[1], float(sys.argv[2]), sys.argv[3]
texts, size = [], 0
for line in open(path, encoding="utf-8"):
    texts.append(json.loads(line)["text"])
    size += len(texts[-1].encode())
    if size >= megabytes * 1e6:
        break
more = {} if way == "default" else {"language": Regex()}
found = {}
for kind in (GopherRepetitionFilter, GopherQualityFilter, C4QualityFilter, FineWebQualityFilter):
    one = kind(**more)
    one.filter(Document(text="A first document, to load what is loaded once.", id="0"))
    began = time.process_time()
    for text in texts:
        try:
            one.filter(Document(text=text, id="0"))
        except ZeroDivisionError:
            pass
    found[kind.__name__] = (time.process_time() - began) / (size / 1e6)
print(json.dumps(found))
"""


def batches(path: Path, megabytes: float) -> Iterator[Batch]:
    """Batches of about a megabyte, as readers give them."""
    texts: list[str] = []
    size = total = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1])
            if size >= 1 << 20 or len(texts) == 256:
                yield Batch(texts, range(len(texts)))
                total += size
                texts, size = [], 0
                if total >= megabytes * 1e6:
                    return
    if texts:
        yield Batch(texts, range(len(texts)))


def cost(work: Callable[[Batch], object], data: list[Batch]) -> float:
    """CPU-seconds per MB of text."""
    work(data[0])
    size = sum(len(text.encode()) for batch in data for text in batch.texts)
    began = time.process_time()
    for batch in data:
        work(batch)
    return (time.process_time() - began) / (size / 1e6)


def theirs(python: str, path: Path, megabytes: float, way: str) -> dict[str, float]:
    """CPU-seconds per MB of each of datatrove's filters."""
    command = [python, "-c", THEIRS, str(path), str(megabytes), way]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {str(name): float(value) for name, value in json.loads(output.splitlines()[-1]).items()}


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=110, help="text for the fast parts")
    parser.add_argument("--slow-megabytes", type=float, default=6, help="text for the default tokenizer of datatrove")
    parser.add_argument("--datatrove", metavar="PYTHON", help="interpreter with datatrove and spacy")
    options = parser.parse_args()
    path = real_text.corpus(options.megabytes)
    data = list(batches(path, options.megabytes))
    resolved = resolve_tokenizer(str(real_text.tokenizer(path)), real_text.EOD)
    encoder = Encoder.of(resolved, choose_engine(resolved).engine)
    reference = Tokenizer.from_file(str(real_text.tokenizer(path)))
    rows: dict[str, float] = {}

    def clean(settings: CleanSettings) -> Callable[[Batch], Batch]:
        return lambda batch: clean_batch(batch, settings, RecordAccount("skip"), lambda _: "")

    for name, own in FAMILIES.items():
        rows[f"gristmill {name}"] = cost(clean(CleanSettings(**{name: own})), data)
    rows["gristmill, sum of the four"] = sum(rows.values())
    families = clean(CleanSettings(**FAMILIES))
    rows["gristmill, the four in one pass"] = cost(families, data)
    language = clean(CleanSettings(languages=LanguageSettings(keep=("en",))))
    rows["gristmill language (py3langid, 2,000 characters)"] = cost(language, data)

    def hashed(batch: Batch) -> list[bytes]:
        return [xxhash.xxh3_128_digest(text.encode()) for text in batch.texts]

    def everything(batch: Batch) -> None:  # each on every document, as if no rule had dropped any
        language(batch)
        for name, own in FAMILIES.items():
            clean(CleanSettings(**{name: own}))(batch)
        hashed(batch)
        encoder.encode(batch.texts)

    rows["exact deduplication keys"] = cost(hashed, data)
    rows["tokenizing (fastokens)"] = cost(lambda batch: encoder.encode(batch.texts), data)
    rows["all of these together"] = cost(everything, data)
    few = list(batches(path, options.slow_megabytes))
    rows["tokenizers.encode_batch_fast"] = cost(lambda batch: reference.encode_batch_fast(batch.texts), few)
    if options.datatrove:
        for way, size in (("regex splitter", 3 * options.slow_megabytes), ("default", options.slow_megabytes)):
            found = theirs(options.datatrove, path, size, way.split()[0])
            rows |= {f"datatrove {name}, {way}": value for name, value in found.items()}
            rows[f"datatrove, sum of the four, {way}"] = sum(found.values())
    unit = rows["gristmill, sum of the four"]
    print("| part | CPU-s per MB | MB per CPU-s | the four of gristmill = 1 |\n|---|---|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value:.4f} | {1 / value:.1f} | {value / unit:.2f} |")


if __name__ == "__main__":
    main()
