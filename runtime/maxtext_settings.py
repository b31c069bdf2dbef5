"""MaxText's settings for data, read and checked: every one that is wrong is named at once, before a file is opened.

MaxText leaves its settings for memory-mapped data unchecked, so a typo is found out hours later, by a crash or by
nobody. The settings are taken as they are, from its configuration object or a mapping; those that say nothing about
data are not looked at.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.formats.errors import Problem, SettingsError, SetupError
from gristmill.formats.split import parse_split
from gristmill.runtime.fields import FieldOptions

__all__ = ["FILE_TYPES", "MaxTextSettings", "Purpose", "read_maxtext_settings"]

FILE_TYPES = ("mmap_npy", "gristmill")
"""Values of `grain_file_type` that are understood: anyone's data in Megatron's order, and a corpus of a recipe."""

Purpose = Literal["train", "eval"]
"""What data are for; MaxText has one setting of files for each."""

_WHERE = "MaxText settings"
_MISSING = object()
_LARGEST_SEED = 2**32 - 1

_Check = Callable[[Any], str | None]
"""Says what is wrong with a value, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxTextSettings:
    """What MaxText's settings say about data; see `read_maxtext_settings` for their names there.

    Attributes:
        file_type: one of `FILE_TYPES`.
        train_files: data to train on.
        eval_files: data to validate on; empty for none.
        sequence_length: L.
        train_batch: rows of a training batch over all processes.
        eval_batch: rows of a validation batch over all processes.
        steps: training steps; None where the run is as long as `epochs` of the data.
        epochs: passes over the data where `steps` is None.
        eval_samples: rows of validation over the whole run; None for one pass.
        seed: of the order.
        eod_id: id that closes a document.
        splits: proportions of training, validation and test, or None to take all of each.
        granularity: what is shuffled as one, ``sequence`` or ``document``.
        blend_cache: folder that keeps blends, or None.
        blend_index: folder of a blend made beforehand, or None.
        options: how fields are made.
        vocabulary: ids that the model has an embedding for; None where it is not set.
    """

    file_type: str
    train_files: str
    eval_files: str
    sequence_length: int
    train_batch: int
    eval_batch: int
    steps: int | None
    epochs: int
    eval_samples: int | None
    seed: int
    eod_id: int
    splits: str | None
    granularity: str
    blend_cache: str | None
    blend_index: str | None
    options: FieldOptions
    vocabulary: int | None

    @property
    def train_samples(self) -> int | None:
        """Rows that training reads; None where it is as long as the data."""
        return None if self.steps is None else self.steps * self.train_batch


def _whole(least: int, most: int | None = None) -> _Check:
    rule = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def check(value: Any) -> str | None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            return f"is {value!r}; the rule is {rule}"
        return None

    return check


def _switch(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"is {value!r}; the rule is True or False"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"is {value!r}; the rule is text"


def _named_data(value: Any) -> str | None:
    return _text(value) or (None if value.strip() else "is empty; name the data")


def _proportions(value: Any) -> str | None:
    if not isinstance(value, str):
        return _text(value)
    try:
        if value:
            parse_split(value)
    except SettingsError as error:
        return str(error)
    return None


def _must_be(wanted: Any, why: str) -> _Check:
    return lambda value: None if value == wanted else f"is {value!r}; it must be {wanted!r}: {why}"


def _file_type(value: Any) -> str | None:
    if value in FILE_TYPES:
        return None
    if value == "mmap":
        return (
            "is 'mmap', whose windows leave EOD out of the loss and let attention run over the ends of documents; take "
            "'mmap_npy' for the same files in Megatron's order"
        )
    return f"is {value!r}; the rule is {' or '.join(map(repr, FILE_TYPES))}"


def _expansion(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value in {-1, 1}:
        return None
    return (
        f"is {value!r}; it must be -1: every host reads its own rows, and a run goes on with any number of hosts "
        "without it"
    )


_SETTINGS: dict[str, tuple[Any, _Check]] = {
    "dataset_type": ("grain", _must_be("grain", "the data come through its Grain pipeline")),
    "grain_file_type": (_MISSING, _file_type),
    "grain_train_files": (_MISSING, _named_data),
    "grain_eval_files": ("", _text),
    "max_target_length": (_MISSING, _whole(1)),
    "global_batch_size_to_load": (_MISSING, _whole(1)),
    "global_batch_size_to_load_eval": (None, lambda value: None if value is None else _whole(1)(value)),
    "steps": (_MISSING, _whole(-1)),
    "num_epoch": (1, _whole(1)),
    "eval_interval": (-1, _whole(-1)),
    "eval_steps": (-1, _whole(-1)),
    "data_shuffle_seed": (0, _whole(0, _LARGEST_SEED)),
    "enable_data_shuffling": (True, _must_be(True, "the order is a shuffled one, and fixed beforehand")),
    "vocab_size": (None, lambda value: None if value is None else _whole(1)(value)),
    "mmap_eod_id": (0, _whole(0)),
    "mmap_npy_split": ("", _proportions),
    "mmap_split_sentences": (False, _switch),
    "blend_cache_dir": ("", _text),
    "blend_index_dir": ("", _text),
    "reset_attention_mask": (True, _switch),
    "eod_mask_loss": (False, _switch),
    "packing_max_segments_per_sample": (25, _whole(0)),
    "grain_use_elastic_iterator": (
        False,
        _must_be(False, "what is given here is elastic by itself, and MaxText would wrap it once more"),
    ),
    "grain_train_mixture_config_path": ("", _must_be("", "write the mixture into grain_train_files: 'path,weight;…'")),
    "expansion_factor_real_data": (-1, _expansion),
    "colocated_python_data_input": (
        False,
        _must_be(False, "there the batches are made by MaxText's own pipeline"),
    ),
    "use_sft": (False, _must_be(False, "the data are documents for pre-training")),
    "use_dpo": (False, _must_be(False, "the data are documents for pre-training")),
}
"""By name: MaxText's default, or `_MISSING` where it must be set, and what is wrong with a value."""

_OURS = ("mmap_", "blend_")


def read_maxtext_settings(settings: Any) -> MaxTextSettings:
    """Reads and checks the settings of MaxText that are about data.

    Read are ``grain_file_type``, ``grain_train_files``, ``grain_eval_files``, ``max_target_length``,
    ``global_batch_size_to_load`` and ``…_eval``, ``steps``, ``num_epoch``, ``eval_interval``, ``eval_steps``,
    ``data_shuffle_seed``, ``vocab_size``, ``mmap_eod_id``, ``mmap_npy_split``, ``mmap_split_sentences``,
    ``blend_cache_dir``, ``blend_index_dir``, ``reset_attention_mask``, ``eod_mask_loss`` and
    ``packing_max_segments_per_sample``. Workers, threads and buffers of Grain have nothing to set here and are ignored;
    what would change the meaning of the data and cannot be followed is refused.

    Args:
        settings: MaxText's configuration object, anything else with such attributes, or a mapping. What is not there
            has MaxText's default.

    Raises:
        SetupError: settings are missing, wrong or contradict each other; the message lists all of them, each with its
            name, value, rule and remedy.
    """
    problems = [*_misspelt(settings)]
    values: dict[str, Any] = {}
    for name, (default, check) in _SETTINGS.items():
        value = _get(settings, name, default)
        if value is _MISSING:
            problems.append(Problem(name, "is not set, and has no default that could be right"))
            continue
        wrong = check(value)
        if wrong is None:
            values[name] = value
        else:
            problems.append(Problem(name, wrong))
    problems += _contradictions(values)
    if problems:
        raise SetupError(_WHERE, problems)
    return _settings(values)


def _get(settings: Any, name: str, default: Any) -> Any:
    if isinstance(settings, Mapping):
        return settings.get(name, default)
    try:
        return getattr(settings, name, default)
    except ValueError:  # what MaxText's configuration object says of a name that it does not know
        return default


def _misspelt(settings: Any) -> Iterator[Problem]:
    """Settings of a mapping that begin like those for such data and are none of them."""
    for name in settings if isinstance(settings, Mapping) else ():
        if isinstance(name, str) and name.startswith(_OURS) and name not in _SETTINGS:
            near = difflib.get_close_matches(name, _SETTINGS, 1)
            yield Problem(name, "is no setting" + (f"; did you mean {near[0]}?" if near else "; leave it out"))


def _contradictions(values: Mapping[str, Any]) -> Iterator[Problem]:
    interval, files = values.get("eval_interval", -1), values.get("grain_eval_files", "")
    if interval > 0 and not files.strip():
        yield Problem("grain_eval_files", f"is empty, but eval_interval is {interval}; name data, or set it to -1")
    if values.get("steps") == 0:
        yield Problem("steps", "is 0; the rule is a number of steps, or -1 for as many as num_epoch makes")
    corpus = values.get("grain_file_type") == "gristmill"
    for name in ("mmap_npy_split", "blend_cache_dir", "blend_index_dir"):
        if corpus and values.get(name):
            yield Problem(
                name,
                f"is {values[name]!r}, but a corpus has its own splits and blends, fixed by its recipe; leave it empty",
            )


def _settings(values: Mapping[str, Any]) -> MaxTextSettings:
    train_batch = values["global_batch_size_to_load"]
    eval_batch = values["global_batch_size_to_load_eval"] or train_batch
    steps = values["steps"] if values["steps"] > 0 else None
    reset = values["reset_attention_mask"]
    return MaxTextSettings(
        file_type=values["grain_file_type"],
        train_files=values["grain_train_files"].strip(),
        eval_files=values["grain_eval_files"].strip(),
        sequence_length=values["max_target_length"],
        train_batch=train_batch,
        eval_batch=eval_batch,
        steps=steps,
        epochs=values["num_epoch"],
        eval_samples=_eval_samples(steps, values["eval_interval"], values["eval_steps"], eval_batch),
        seed=values["data_shuffle_seed"],
        eod_id=values["mmap_eod_id"],
        splits=values["mmap_npy_split"] or None,
        granularity="document" if values["mmap_split_sentences"] else "sequence",
        blend_cache=values["blend_cache_dir"] or None,
        blend_index=values["blend_index_dir"] or None,
        options=FieldOptions(
            reset_attention_mask=reset,
            reset_position_ids=reset,
            eod_mask_loss=values["eod_mask_loss"],
            max_segments_per_sample=values["packing_max_segments_per_sample"],
        ),
        vocabulary=values["vocab_size"],
    )


def _eval_samples(steps: int | None, interval: int, eval_steps: int, batch: int) -> int | None:
    """As MaxText sizes validation: all of its rounds, one after the other."""
    if eval_steps <= 0:
        return None
    rounds = math.ceil(steps / interval) if steps is not None and interval > 0 else 1
    return max(1, rounds) * eval_steps * batch
