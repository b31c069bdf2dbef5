"""What a record of a TFRecord or ArrayRecord file is: a `tf.train.Example`, a JSON object, or a text by itself.

Such files hold bytes and do not say what is in them, so the recipe does (`record`). An Example is a map from names to
lists of bytes, integers or floats; the form of it is written down here and parsed by the `protobuf` library, without
TensorFlow. A record that is none, or that lacks a text, is a bad record like any other.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.text_form import MISSING, field_value
from gristmill.pipelines.carried import carried_lines
from gristmill.pipelines.lines import BLOCK_BYTES
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.read_jsonl import object_text, parse_object
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["RecordTexts"]

_SHOWN_BYTES = 80
_SHOWN_FEATURES = 20

_Where = Callable[[], Place]


class _Form(Protocol):
    """How records of one kind are read; all of a record comes from one `parse`."""

    def parse(self, data: bytes, where: _Where) -> Any:
        """What a record holds; None after the account was told that it is none."""

    def text(self, row: Any, where: _Where) -> str | None:
        """Its text; None after the account was told why there is none."""

    def value(self, row: Any, name: str) -> Any:
        """Another field of it, as JSON can hold it; None where there is none."""


class RecordTexts:
    """Turns the records of one extent into batches.

    Args:
        extent: where they lie.
        source: what they are, and what becomes of a bad one.
        account: takes counts and samples.
    """

    def __init__(self, extent: Extent, source: SourceSettings, account: RecordAccount) -> None:
        self._form = _form(source, account)
        self._extent = extent
        self._account = account
        self._address = source.clean.url_field if source.clean.url_lists else None
        self._carry = source.carry
        self._id_field = source.carry.id_field if source.carry is not None else None
        self._first = account.records, account.dropped["missing_field"]
        self._start()

    def add(self, data: bytes, place: Callable[[], str]) -> Batch | None:
        """Takes the next record; gives a batch when about 1 MiB of text is together.

        Args:
            data: its bytes.
            place: says where in the file it lies, when somebody must know.

        Raises:
            InputError: the record is bad and the policy is "fail".
        """

        row: Any = None

        def where() -> Place:
            named = None if row is None or not self._id_field else self._form.value(row, self._id_field)
            return Place(self._extent.path, self._extent.relative, place(), named)

        row = self._form.parse(data, where)
        text = None if row is None else self._form.text(row, where)
        if text:
            self._batch.texts.append(text)
            self._records.append(self._account.records)
            if self._batch.addresses is not None and self._address is not None:
                address = self._form.value(row, self._address)
                self._batch.addresses.append(address if isinstance(address, str) else None)
            if self._carry is not None:
                for name, column in zip(self._carry.names, self._carried, strict=True):
                    column.append(self._form.value(row, name))
            self._size += len(text)
        self._account.records += 1
        return self._finished() if self._size >= BLOCK_BYTES else None

    def rest(self) -> Batch | None:
        """The last batch, None where it would be empty.

        Raises:
            InputError: no record of the extent has the field.
        """
        records = self._account.records - self._first[0]
        if records and self._account.dropped["missing_field"] - self._first[1] == records:
            raise InputError(
                f"{self._extent.path}: none of {records} records has the text: {self._account.last_bad}; set "
                "text_field, or record if they are no tf.train.Example"
            )
        return self._finished() if self._batch.texts else None

    def _start(self) -> None:
        self._records: list[int] = []
        addresses: list[str | None] | None = None if self._address is None else []
        self._batch = Batch([], self._records, addresses)
        self._carried: list[list[Any]] = [] if self._carry is None else [[] for _ in self._carry.names]
        self._size = 0

    def _finished(self) -> Batch:
        batch = self._batch
        if self._carry is not None:
            batch.carried = carried_lines(self._carry, self._carried, self._account)
        self._start()
        return batch


def _form(source: SourceSettings, account: RecordAccount) -> _Form:
    if source.record == "text":
        return _Text(source, account)
    if source.record == "json":
        return _Json(source, account)
    return _Example(source, account)


def _decoded(data: bytes, where: _Where, source: SourceSettings, account: RecordAccount) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if source.invalid_text != "replace":
            account.reject("invalid_utf8", where, f"{error.reason} in {data[:_SHOWN_BYTES]!r}", "mend the value")
            return None
        account.counted["repaired_text"] += 1
        return data.decode("utf-8", "replace")


class _Text:
    """A record that is a text."""

    def __init__(self, source: SourceSettings, account: RecordAccount) -> None:
        self._source, self._account = source, account

    def parse(self, data: bytes, where: _Where) -> bytes:  # noqa: ARG002 - a text may be any bytes
        return data

    def text(self, row: bytes, where: _Where) -> str | None:
        text = _decoded(row, where, self._source, self._account)
        if text == "":
            self._account.drop("empty", where, "")
        return text

    def value(self, row: bytes, name: str) -> None:  # noqa: ARG002 - a text has no other field
        return None


class _Json:
    """A record that is a JSON object, as a line of a JSON lines file is."""

    def __init__(self, source: SourceSettings, account: RecordAccount) -> None:
        self._source, self._account = source, account

    def parse(self, data: bytes, where: _Where) -> dict[str, Any] | None:
        return parse_object(data, self._source, self._account, where)

    def text(self, row: dict[str, Any], where: _Where) -> str | None:
        return object_text(row, self._source, self._account, where)

    def value(self, row: dict[str, Any], name: str) -> Any:
        value = field_value(row, name)
        return None if value is MISSING else value


class _Example:
    """A record that is a `tf.train.Example`."""

    def __init__(self, source: SourceSettings, account: RecordAccount) -> None:
        self._source, self._account = source, account
        self._type, self._error = _example_type()

    def parse(self, data: bytes, where: _Where) -> Any:
        try:
            return self._type.FromString(data).features.feature
        except self._error:
            remedy = "leave the record out, or set record if none is a tf.train.Example"
            self._account.reject("malformed_example", where, repr(data[:_SHOWN_BYTES]), remedy)
            return None

    def text(self, row: Any, where: _Where) -> str | None:
        parts = []
        for name in self._source.form.names:
            data = self._bytes(row, name, where)
            if data is None:
                return None
            part = _decoded(data, where, self._source, self._account)
            if part is None:
                return None
            parts.append(part)
        text = self._source.form.join(parts)
        if not text:
            self._account.drop("empty", where, "")
        return text

    def _bytes(self, row: Any, name: str, where: _Where) -> bytes | None:
        if name not in row:
            seen = ", ".join(sorted(row)[:_SHOWN_FEATURES]) or "none"
            found = f"no feature {name!r}; features seen: {seen}"
            self._account.reject("missing_field", where, found, "set text_field to one")
            return None
        kind = row[name].WhichOneof("kind")
        if kind not in {None, "bytes_list"}:
            found = f"feature {name!r} holds {_KIND_NAMES[kind]}"
            self._account.reject("not_a_string", where, found, "name a feature of bytes")
            return None
        values = row[name].bytes_list.value
        if not values:
            self._account.reject("null_text", where, f"feature {name!r} holds no value", "leave the record out")
            return None
        if len(values) > 1:
            found = f"feature {name!r} holds {len(values)} values"
            self._account.reject("not_a_string", where, found, "name a feature that holds one")
            return None
        return bytes(values[0])

    def value(self, row: Any, name: str) -> Any:
        kind = row[name].WhichOneof("kind") if name in row else None
        if kind is None:
            return None
        values = list(getattr(row[name], kind).value)
        if kind == "bytes_list":
            values = [value.decode("utf-8", "replace") for value in values]
        return values[0] if len(values) == 1 else (values or None)


_KIND_NAMES = {"int64_list": "integers", "float_list": "floats"}


@functools.cache
def _example_type() -> tuple[Any, type[Exception]]:
    """The class of `tf.train.Example`, and what parsing raises; its form is that of TensorFlow's `example.proto`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="gristmill/example.proto", package="gristmill", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, label=kinds.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        feature.field.add(
            name=name.removesuffix("List").lower() + "_list",
            number=number,
            label=kinds.LABEL_OPTIONAL,
            type=kinds.TYPE_MESSAGE,
            type_name=f".gristmill.{name}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    _message_field(entry, "value", 2, ".gristmill.Feature")
    _message_field(features, "feature", 1, ".gristmill.Features.FeatureEntry", repeated=True)
    _message_field(file.message_type.add(name="Example"), "features", 1, ".gristmill.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("gristmill.Example"))
    return found, message.DecodeError


def _message_field(owner: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    owner.field.add(name=name, number=number, label=label, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=kind)
