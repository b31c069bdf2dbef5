"""The quick start: a real corpus from texts found on this machine, prepared and trained on, with nothing downloaded.

    python examples/quickstart.py [FOLDER]        FOLDER is out/quickstart unless given

Everything goes through the public commands and files: a recipe, `gristmill prepare`, `verify` and `inspect`, then the
training example twice, once without a break and once resumed half-way in a new process, to show that the batches after
the resume are the same. Nothing here is needed by Gristmill itself.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EXAMPLES = Path(__file__).resolve().parent
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3"}
VOCABULARY = 8_000
EOD = "<|endoftext|>"
SEQUENCE_LENGTH = 512
STEPS = 40
HALF = STEPS // 2
GLOBAL_BATCH = 8
DEVICES = 8

Step = dict[str, Any]
"""What the training example logs of a step: its number, its loss, the digest of its batch."""

RECIPE = """\
# Written by the quick start; change it and run `gristmill prepare` on it again.
name   = "quickstart"
output = {output}
seed   = 1234

[tokenizer]
path = {tokenizer}
eod  = "{eod}"

[defaults.clean]
min_chars = 50                    # exact deduplication is on unless switched off

[[sources]]
id     = "code"                   # the .py files of Python's standard library, read where they are
files  = {code}
bad_records = "skip"              # a few files there are broken on purpose
weight = 0.5

[[sources]]
id     = "docs"                   # the language reference and the library's docstrings
files  = [{docs}]
weight = 0.3

[[sources]]
id     = "notices"                # licences, metadata and readmes of the installed packages
files  = [{notices}]
weight = 0.2

[shards]
target_tokens = 1_000_000

[index]
sequence_length = {length}
samples = {samples}
splits  = "95,5,0"
"""


def main() -> int:
    """Runs the quick start; returns the exit code."""
    began = time.monotonic()
    corpus = Path(sys.argv[1] if len(sys.argv) > 1 else "out/quickstart")
    work = corpus.with_name(corpus.name + "-work")
    shutil.rmtree(work / "train", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)

    title("1/5  Gathering texts on this machine")
    docs, notices = work / "docs.jsonl", work / "notices.jsonl"
    print(f"  docs     {write_jsonl(docs, docs_texts())} texts -> {docs}")
    print(f"  notices  {write_jsonl(notices, notice_texts())} texts -> {notices}")
    code = code_folders()
    print(f"  code     {sum(1 for _ in code_files(code))} files below {LIBRARY}, read in place")

    title(f"2/5  Training a tokenizer of {VOCABULARY:,} entries on a sample")
    tokenizer = work / "tokenizer.json"
    train_tokenizer(tokenizer, code, docs, notices)

    title("3/5  Preparing the corpus: gristmill prepare")
    recipe = work / "recipe.toml"
    recipe.write_text(
        RECIPE.format(
            output=quoted(corpus),
            tokenizer=quoted(tokenizer),
            eod=EOD,
            code=json.dumps([str(path) for path in code]),
            docs=quoted(docs),
            notices=quoted(notices),
            length=SEQUENCE_LENGTH,
            samples=STEPS * GLOBAL_BATCH,
        ),
        encoding="utf-8",
    )
    gristmill("prepare", str(recipe), "--runner", "FnApiRunner", "--direct_num_workers=0")  # Beam, as in a cluster

    title("4/5  Looking at it: gristmill verify, gristmill inspect")
    gristmill("verify", str(corpus))
    gristmill("inspect", str(corpus), "--documents", "1")

    title(f"5/5  Training on a mesh of {DEVICES} virtual CPU devices: without a break, then stopped and resumed")
    whole = train(corpus, work / "train" / "whole")
    train(corpus, work / "train" / "broken", "--stop-after", str(HALF))
    resumed = train(corpus, work / "train" / "broken", "--resume")
    return conclude(corpus, recipe, whole, resumed, time.monotonic() - began)


def title(text: str) -> None:
    """Prints a heading."""
    print(f"\n--- {text}", flush=True)


def quoted(path: Path) -> str:
    """A path as a TOML string."""
    return json.dumps(str(path))


def code_folders() -> list[Path]:
    """The standard library's modules and packages, without tests and what others installed."""
    entries = sorted(LIBRARY.iterdir())
    return [
        entry
        for entry in entries
        if entry.name not in NOT_SOURCES and (entry.suffix == ".py" or (entry.is_dir() and any(entry.rglob("*.py"))))
    ]


def code_files(entries: list[Path]) -> Iterator[Path]:
    """The .py files among or below some paths."""
    for entry in entries:
        yield from [entry] if entry.is_file() else sorted(entry.rglob("*.py"))


def docs_texts() -> Iterator[str]:
    """The topics that `help()` shows, and every longer docstring of the standard library."""
    from pydoc_data import topics

    yield from topics.topics.values()
    for path in code_files(code_folders()):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= 200:
                    yield text


def notice_texts() -> Iterator[str]:
    """Metadata, licences and readmes of the packages installed beside this one."""
    for package in sorted(metadata.distributions(), key=lambda found: found.metadata["Name"] or ""):
        yield package.read_text("METADATA") or ""
        for file in package.files or []:
            name = file.name.upper()
            if name.startswith(("LICEN", "README", "NOTICE", "COPYING", "AUTHORS", "CHANGE")):
                path = Path(str(file.locate()))
                if path.suffix in {"", ".txt", ".md", ".rst"} and path.is_file():
                    yield path.read_text(encoding="utf-8", errors="replace")


def write_jsonl(path: Path, texts: Iterator[str]) -> int:
    """Writes non-empty texts as JSON lines; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            if text:
                file.write(json.dumps({"text": text}) + "\n")
                count += 1
    return count


def train_tokenizer(path: Path, code: list[Path], docs: Path, notices: Path) -> None:
    """Trains a byte-level BPE on every third source file and the two text files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def sample() -> Iterator[str]:
        for number, source in enumerate(code_files(code)):
            if number % 3 == 0:
                yield source.read_text(encoding="utf-8", errors="replace")
        for lines in (docs, notices):
            with lines.open(encoding="utf-8") as file:
                for number, line in enumerate(file):
                    if number % 3 == 0:
                        yield json.loads(line)["text"]

    tokenizer.train_from_iterator(sample(), trainer)
    tokenizer.save(str(path))
    print(f"  {tokenizer.get_vocab_size():,} entries -> {path}")


def gristmill(*words: str) -> None:
    """Runs a command and shows it."""
    print(f"$ gristmill {' '.join(words)}", flush=True)
    run([sys.executable, "-m", "gristmill", *words])


def run(command: list[str], **environment: str) -> None:
    """Runs a program to its end.

    Raises:
        SystemExit: it failed.
    """
    finished = subprocess.run(command, env={**os.environ, **environment}, check=False)
    if finished.returncode:
        raise SystemExit(finished.returncode)


def train(corpus: Path, folder: Path, *words: str) -> list[Step]:
    """Runs the training example in a process of its own and returns its log, one entry a step."""
    log = folder / f"log-{len(list(folder.glob('log-*.jsonl')))}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    command = ["train_gpt.py", str(corpus), "--steps", str(STEPS), "--global-batch", str(GLOBAL_BATCH)]
    command += ["--checkpoint", str(folder / "checkpoints"), "--log", str(log), *words]
    print(f"$ python examples/{' '.join(command)}", flush=True)
    run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={DEVICES}",
    )
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def conclude(corpus: Path, recipe: Path, whole: list[Step], resumed: list[Step], seconds: float) -> int:
    """Compares the runs and says where everything is; returns the exit code."""
    batches = {entry["step"]: entry["sha256"] for entry in whole}
    again = {entry["step"]: entry["sha256"] for entry in resumed}
    same = len(again) == STEPS - HALF and all(batches.get(step) == digest for step, digest in again.items())
    losses = [float(entry["loss"]) for entry in whole]
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    print()
    print(f"  the {len(again)} batches after the resume equal those of the unbroken run: {'yes' if same else 'NO'}")
    print(f"  loss, mean of five steps: {first:.3f} at the start, {last:.3f} at the end")
    print(f"\nDone in {seconds:.0f} s. What is where:")
    print(f"  {recipe}    the recipe; everything below follows from it")
    print(f"  {corpus}/manifest.json    what the corpus holds, with a digest of every shard")
    print(f"  {corpus}/tokens/    Megatron .bin/.idx shards        {corpus}/indices/    the order of samples")
    print(f"  {recipe.parent}/train/    checkpoints and logs")
    command = os.path.relpath(Path(sys.executable).with_name("gristmill"))
    print("What to try next:")
    print(f"  {command} prepare {recipe}    nothing to do: it is finished. Change a weight and see what is redone")
    print(f"  {command} inspect {corpus}/tokens/docs/docs-00000-of-00001")
    print("  docs/guide/recipe.md, to prepare your own text")
    return 0 if same and last < first else 1


if __name__ == "__main__":
    sys.exit(main())
