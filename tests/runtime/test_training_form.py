"""What trainers are given, against the six fields one position at a time, in NumPy and inside jit."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gristmill.formats.errors import SettingsError
from gristmill.runtime import TokenBatches, TrainingForm, make_fields, make_megatron_fields, open_corpus, to_training
from gristmill.runtime.fields import FIELD_NAMES, FieldOptions
from gristmill.runtime.presets import PRESETS
from gristmill.runtime.training_form import TRAINERS

EOD = 9


@st.composite
def six_fields(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Fields of some rows, padded or not, under any options."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    row = st.lists(st.integers(0, 12), min_size=length + 1, max_size=length + 1)
    tokens = np.array(draw(st.lists(row, min_size=rows, max_size=rows)))
    valid = draw(st.none() | st.lists(st.integers(0, length), min_size=rows, max_size=rows).map(np.array))
    options = FieldOptions(
        reset_attention_mask=draw(st.booleans()),
        reset_position_ids=draw(st.booleans()),
        eod_mask_loss=draw(st.booleans()),
    )
    return make_fields(tokens, EOD, options, valid_length=valid)


FORMS = st.builds(
    TrainingForm,
    ignore_id=st.sampled_from([-100, -1]),
    shifted=st.booleans(),
    padding_mask=st.sampled_from(["m", None]),
)


def by_hand(batch: dict[str, np.ndarray], form: TrainingForm) -> dict[str, Any]:
    """The definition of each array, position by position."""
    rows, length = batch["inputs"].shape
    made: dict[str, Any] = {name: np.zeros((rows, length), np.int32) for name in ("labels", "padding_mask")}
    made["loss_mask"] = np.zeros((rows, length), np.float32)
    for row in range(rows):
        for place in range(length):
            at = place if form.shifted else place - 1
            counts = at >= 0 and batch["targets_segmentation"][row, at] != 0
            made["labels"][row, place] = batch["targets"][row, at] if counts else form.ignore_id
            made["loss_mask"][row, place] = float(counts)
            made["padding_mask"][row, place] = int(batch["inputs_segmentation"][row, place] > 0)
    made["inputs"], made["positions"] = batch["inputs"], batch["inputs_position"]
    made["segments"] = batch["inputs_segmentation"]
    made["loss_tokens"] = np.int32(made["loss_mask"].sum())
    return {named: made[name] for name, named in form.names.items() if named is not None}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@given(six_fields(), FORMS)
def test_every_array_is_as_defined(batch: dict[str, np.ndarray], form: TrainingForm) -> None:
    before = {name: array.copy() for name, array in batch.items()}
    made = to_training(batch, form)
    assert_same(made, by_hand(batch, form))
    assert_same(batch, before)
    assert all(isinstance(array, np.ndarray | np.generic) for array in made.values())


@given(six_fields(), FORMS)
def test_one_flat_axis(batch: dict[str, np.ndarray], form: TrainingForm) -> None:
    plain, flat = to_training(batch, form), to_training(batch, form, flat=True)
    rows, length = batch["inputs"].shape
    for name, array in flat.items():
        if name == "loss_tokens":
            assert array == plain[name]
            continue
        assert array.shape == (rows * length,)
        if name != "segments":
            np.testing.assert_array_equal(array, plain[name].ravel())
    row = np.repeat(np.arange(rows), length)
    seg = plain["segments"].ravel()
    together = (seg[:, None] == seg) & (row[:, None] == row) & (seg[:, None] != 0) & (seg != 0)
    found = (flat["segments"][:, None] == flat["segments"]) & (flat["segments"][:, None] != 0)
    np.testing.assert_array_equal(found, together, err_msg="the same document of the same row, and nothing else")


@settings(max_examples=15, deadline=None)
@given(six_fields(), FORMS, st.booleans())
def test_inside_jit_it_is_the_same(batch: dict[str, np.ndarray], form: TrainingForm, flat: bool) -> None:
    made = jax.jit(lambda arrays: to_training(arrays, form, flat=flat))(batch)
    assert all(isinstance(array, jax.Array) for array in made.values())
    assert_same(made, to_training(batch, form, flat=flat))


@given(six_fields())
def test_microbatches_are_so_many_batches(batch: dict[str, np.ndarray]) -> None:
    stacked = {name: np.stack([array, array[::-1]]) for name, array in batch.items()}
    for flat in (False, True):
        made = to_training(stacked, flat=flat)
        for place, one in enumerate([batch, {name: array[::-1] for name, array in batch.items()}]):
            expected = to_training(one, flat=flat)
            for name in expected.keys() - {"loss_tokens"}:
                np.testing.assert_array_equal(made[name][place], expected[name], err_msg=name)
        assert made["loss_tokens"] == 2 * to_training(batch)["loss_tokens"]


@given(st.lists(st.lists(st.integers(0, 12), min_size=8, max_size=8), min_size=1, max_size=4).map(np.array))
def test_megatrons_form_is_megatrons(tokens: np.ndarray) -> None:
    for options in (PRESETS["megatron"], FieldOptions(eod_mask_loss=True)):
        made = to_training(make_fields(tokens, EOD, options), "megatron")
        expected = make_megatron_fields(tokens, EOD, options)
        assert made.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(made[name], value)
            assert made[name].dtype == (value.dtype if value.dtype == np.float32 else np.int32)


def test_hugging_faces_own_loss_counts_what_we_count() -> None:
    """Its models compare logits of position i with the label of position i + 1, and leave out -100."""
    batch = make_fields(np.array([[1, 2, EOD, 3, 4]]), EOD, FieldOptions(eod_mask_loss=True))
    made = to_training(batch, "huggingface")
    assert made.keys() == {"input_ids", "labels", "attention_mask", "position_ids"}
    compared = [(int(made["input_ids"][0, at]), int(made["labels"][0, at + 1])) for at in range(3)]
    assert compared == [(1, 2), (2, EOD), (EOD, -100)], "the last target, 4, is not in a row of four"


@pytest.mark.parametrize(
    ("trainer", "names"),
    [
        ("easylm", {"input_tokens", "target_tokens", "loss_masks"}),
        ("megatron", {"tokens", "labels", "loss_mask", "position_ids"}),
        (
            "t5x",
            {
                "decoder_input_tokens",
                "decoder_target_tokens",
                "decoder_loss_weights",
                "decoder_positions",
                "decoder_segment_ids",
            },
        ),
    ],
)
def test_names_of_trainers(trainer: Any, names: set[str]) -> None:
    batch = make_fields(np.array([[1, 2, EOD, 3, 4]]), EOD, valid_length=np.array([2]))
    made = to_training(batch, trainer)
    assert made.keys() == names
    assert TRAINERS[trainer].shifted
    (labels,) = (array for name, array in made.items() if "target" in name or name == "labels")
    np.testing.assert_array_equal(labels, batch["targets"])


def test_batches_of_a_mesh(blended_corpus: str) -> None:
    """Sharded arrays in, sharded arrays out; the count is that of the whole batch."""
    stream = open_corpus(blended_corpus).stream()
    mesh = jax.make_mesh((4, 2), ("data", "seq"))
    sharding = NamedSharding(mesh, P("data", "seq"))
    with TokenBatches(stream, 8, sharding, fields="device", options=FieldOptions(eod_mask_loss=True)) as batches:
        made = jax.jit(lambda batch: to_training(batches.expand(batch)))(next(batches))
    fields = make_fields(stream.read(np.arange(8)), stream.eod_id, FieldOptions(eod_mask_loss=True))
    assert_same(made, to_training(fields))


def test_what_cannot_be_followed() -> None:
    batch = make_fields(np.array([[1, 2, 3]]), EOD)
    with pytest.raises(
        SettingsError, match=r"form must be a TrainingForm or one of 'easylm', .*, not 'maxtext'; MaxText"
    ):
        to_training(batch, "maxtext")  # type: ignore[arg-type]  # on purpose
    for name in set(FIELD_NAMES) - {"targets_position"}:
        with pytest.raises(SettingsError, match=rf"the batch has no {name}; to_training takes the six fields"):
            to_training({other: batch[other] for other in batch if other != name})
    with pytest.raises(SettingsError, match=r"two arrays of a training form are called 'labels'; each needs a name"):
        TrainingForm(inputs="labels")
    with pytest.raises(SettingsError, match=r"shifted=False needs an ignore_id: the first position of a row has no"):
        TrainingForm(shifted=False, ignore_id=None)
    assert TrainingForm(shifted=False, labels=None, ignore_id=None).names["labels"] is None
