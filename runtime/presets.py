"""The field options of the programs that Gristmill can stand in for, and what of one's own differs from them.

Gristmill's defaults are neither's: they keep documents apart, which Megatron does only when asked, and merge nothing,
which MaxText does unless told not to. Whoever compares losses with a run of one of them starts from its preset; what is
then changed is named in a warning, so that a difference in the curves has its list of suspects.
"""

import warnings
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Literal, get_args

from gristmill.formats.errors import SettingsError
from gristmill.runtime.fields import CU_SEQLENS, FieldOptions

__all__ = ["departures", "order_departures", "Parity", "parity_options", "PRESETS", "warn_departures"]

Parity = Literal["megatron", "maxtext"]
"""The programs that there are presets of: Megatron-Core's GPTDataset, and MaxText's `mmap_npy` reader."""

PRESETS: dict[Parity, FieldOptions] = {
    "megatron": FieldOptions(reset_attention_mask=False, reset_position_ids=False),
    "maxtext": FieldOptions(max_segments_per_sample=25),
}
"""The options that make what each program makes with nothing set."""

_SETTINGS: dict[Parity, dict[str, str]] = {
    "megatron": {
        "reset_attention_mask": "--reset-attention-mask",
        "reset_position_ids": "--reset-position-ids",
        "eod_mask_loss": "--eod-mask-loss",
        "boundaries": "inter_document_masking, where it has it",
    },
    "maxtext": {
        "reset_attention_mask": "reset_attention_mask, which sets reset_position_ids too",
        "reset_position_ids": "reset_attention_mask, which sets it too",
        "eod_mask_loss": "eod_mask_loss",
        "max_segments_per_sample": "packing_max_segments_per_sample",
    },
}
"""By program: the settings of ours that it has, and what it calls them."""

_ORDER: dict[Parity, dict[str, tuple[object, str]]] = {
    "megatron": {
        "seed": (1234, "--seed"),
        "granularity": ("sequence", ""),
        "surplus": (0.005, "--mid-level-dataset-surplus"),
    },
    "maxtext": {
        "seed": (0, "data_shuffle_seed"),
        "granularity": ("sequence", "mmap_split_sentences"),
        "surplus": (0.005, ""),
    },
}
"""By program: the settings of the order with their values when nothing is set, and what the program calls them."""

_TITLES: dict[Parity, str] = {"megatron": "Megatron", "maxtext": "MaxText"}


def _preset_of(parity: str) -> FieldOptions:
    """The preset of a program.

    Raises:
        SettingsError: there is none of that name.
    """
    if parity not in get_args(Parity):
        raise SettingsError(f"parity must be {' or '.join(map(repr, get_args(Parity)))}, not {parity!r}")
    return PRESETS[parity]  # type: ignore[index]  # just looked


def departures(options: FieldOptions, parity: Parity) -> tuple[str, ...]:
    """The settings by which options make other fields than a program makes with nothing set.

    Returns:
        A phrase for each: the setting and its value, the program's, and what the program calls it, if it has it.

    Raises:
        SettingsError: there is no preset of that name.

    Examples:
        >>> departures(FieldOptions(reset_position_ids=False), "megatron")
        ('reset_attention_mask=True (Megatron: False, unless --reset-attention-mask)',)
    """
    preset, known, title = _preset_of(parity), _SETTINGS[parity], _TITLES[parity]
    found = []
    for name in (field.name for field in fields(options) if field.name != CU_SEQLENS):
        ours, theirs = getattr(options, name), getattr(preset, name)
        if ours == theirs or (name == "over_limit" and not options.segment_limit):
            continue
        how = f"{theirs!r}, unless {known[name]}" if name in known else "has no such setting"
        found.append(f"{name}={ours!r} ({title}: {how})")
    return tuple(found)


def order_departures(parity: Parity, **settings: object) -> tuple[str, ...]:
    """The settings by which rows come in another order than a program's with nothing set.

    Args:
        parity: the program.
        **settings: `seed`, `granularity` and `surplus`, as `open_megatron` has them.

    Returns:
        A phrase for each, as from `departures`.

    Raises:
        SettingsError: there is no preset of that name.

    Examples:
        >>> order_departures("maxtext", seed=1234)
        ('seed=1234 (MaxText: 0, unless data_shuffle_seed)',)
    """
    _preset_of(parity)
    found = []
    for name, ours in settings.items():
        theirs, called = _ORDER[parity][name]
        if ours != theirs:
            how = f"unless {called}" if called else "always"
            found.append(f"{name}={ours!r} ({_TITLES[parity]}: {theirs!r}, {how})")
    return tuple(found)


def parity_options(parity: Parity, **changes: Any) -> FieldOptions:
    """The options of a program, with some of them changed.

    Args:
        parity: the program.
        **changes: attributes of `FieldOptions`, by name.

    Raises:
        SettingsError: there is no preset of that name, or a change breaks a rule.

    Warns:
        UserWarning: a change departs from what the program does; each is named.

    Examples:
        >>> parity_options("megatron").reset_attention_mask
        False
    """
    unknown = sorted(changes.keys() - {field.name for field in fields(FieldOptions)})
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such field option; there are {', '.join(f.name for f in fields(FieldOptions))}"
        )
    options = replace(_preset_of(parity), **changes)
    warn_departures(parity, departures(options, parity))
    return options


def warn_departures(parity: Parity, found: Iterable[str], *, stacklevel: int = 3) -> None:
    """Warns of settings by which a result will differ from a program's.

    Args:
        parity: the program.
        found: a phrase for each setting, as from `departures`; none: no warning.
        stacklevel: which caller the warning is about.

    Warns:
        UserWarning: `found` names something.
    """
    listed = "; ".join(found)
    if listed:
        warnings.warn(
            f"parity with {_TITLES[parity]} was asked for, but these settings depart from it: {listed}",
            UserWarning,
            stacklevel=stacklevel,
        )
