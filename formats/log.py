"""The log of a command: sentences for people, or one JSON object a line for machines, on standard error.

Everything goes through Python's own logging, set up here once: by the command line for its process, and by worker
processes from the environment that they inherit. In the JSON form, warnings and whatever libraries print become
records too, so that each line of the stream can be parsed. What happened is told as an event with fields; its sentence
is what the text form prints.
"""

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TextIO

from gristmill.formats.errors import GristmillError
from gristmill.formats.log_capture import captured_lines, write_whole
from gristmill.formats.log_secrets import without_secrets

__all__ = [
    "event",
    "inherit_log",
    "LOG_FORMATS",
    "LOG_VARIABLE",
    "logging_as",
    "logs_json",
    "settle_log",
    "tell",
    "tell_error",
]

LOG_FORMATS = ("text", "json")
"""Forms of the log; the first is the usual one."""

LOG_VARIABLE = "GRISTMILL_LOG_FORMAT"
"""Variable of the environment that names the form, for worker processes and where no option does."""

_OWN = "gristmill"
_WARNINGS = "py.warnings"
_LONGEST_SHARED = 4096  # bytes: as much as several processes can write to one pipe without mixing their lines
_TRACEBACK = "Traceback (most recent call last):"
_FIRST = re.compile(
    r"(?:(?P<key>sources\[\d+\][\w.\[\]]*)|(?P<file>(?:\w+://[^\s/]*)?[^\s:]*/[^\s:]*)(?::(?P<line>\d+))?): "
)
_RESERVED = frozenset({"time", "level", "logger", "event", "message"})


def event(name: str, text: str, *, level: int = logging.INFO, logger: str = _OWN, **fields: Any) -> None:
    """Logs that something happened.

    Where nobody has set up logging, as in a program that uses the library, the sentence goes to standard error.

    Args:
        name: what happened, one word with underscores.
        text: the same as a sentence, for people.
        level: how grave it is.
        logger: name of the logger, below "gristmill".
        fields: facts about it; JSON values.
    """
    log = logging.getLogger(logger)
    if level == logging.INFO and not log.hasHandlers():
        print(without_secrets(text), file=sys.stderr, flush=True)
        return
    log.log(level, "%s", text, extra={"event": name, "fields": fields})


def logs_json() -> bool:
    """Whether this process logs JSON."""
    return any(isinstance(handler, _JsonHandler) for handler in logging.getLogger(_OWN).handlers)


def settle_log() -> None:
    """Waits until what was printed on standard error so far is in the log, so that the next event comes behind it."""
    for handler in logging.getLogger(_OWN).handlers:
        if isinstance(handler, _JsonHandler):
            sys.stderr.flush()
            handler.settle()


def tell(text: str, name: str = "result", **fields: Any) -> None:
    """Prints a line of a command's answer on standard output, and logs it where the log is JSON."""
    print(text, flush=True)
    if logs_json():
        event(name, text, **fields)


def tell_error(error: BaseException, *, trace: bool) -> None:
    """Tells of the error that ends a command.

    Args:
        error: it.
        trace: whether to log where it was raised, as one field.
    """
    if not logs_json():
        print(without_secrets(f"gristmill: {error}"), file=sys.stderr)
        return
    settle_log()
    fields: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, GristmillError):
        fields |= {"exit_code": error.exit_code, **_named_first(str(error)), **error.facts}
    problems = getattr(error, "problems", ())
    if problems:
        fields["problems"] = [{"key": problem.key, "message": problem.message} for problem in problems]
    if trace:
        fields["traceback"] = "".join(traceback.format_exception(error))
    event("error", str(error) or type(error).__name__, level=logging.ERROR, **fields)


def _named_first(message: str) -> dict[str, Any]:
    """The file with its line, or the key of the recipe, that a message begins with."""
    found = _FIRST.match(message)
    if found is None:
        return {}
    named = {name: value for name, value in found.groupdict().items() if value is not None}
    return {name: int(value) if name == "line" else value for name, value in named.items()}


class _TextHandler(logging.Handler):
    """Prints sentences to whatever standard error is at the time; of a library's error the first line alone.

    What stops a run comes back as an exception, and is told once.
    """

    def __init__(self, *, traces: bool) -> None:
        """Takes whether libraries' tracebacks are printed too."""
        super().__init__()
        self._traces = traces

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one."""
        try:
            text = record.getMessage()
            foreign = not record.name.startswith(_OWN)
            if foreign and not self._traces and (record.exc_info or _TRACEBACK in text):
                lines = text.strip().split("\n")
                text = lines[-1 if lines[0] == _TRACEBACK else 0]
                record = logging.makeLogRecord({"name": record.name})
            if foreign:
                text = f"{record.name}: {text}"
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            print(without_secrets(text), file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - a log that cannot be written stops nothing
            self.handleError(record)


class _JsonHandler(logging.Handler):
    """Writes records as JSON lines, to a descriptor or a stream."""

    def __init__(
        self, descriptor: int | None, stream: TextIO, *, shared: bool, settle: Callable[[], None] | None = None
    ) -> None:
        """Takes the place to write to; `shared` bounds lines, since other processes write there as well."""
        super().__init__()
        self._settle = settle
        self._descriptor = descriptor
        self._stream = stream
        self._shared = shared

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        try:
            self.write(_line(record, shared=self._shared))
        except Exception:  # noqa: BLE001 - a log that cannot be written stops nothing
            self.handleError(record)

    def settle(self) -> None:
        """Waits for what was printed so far, where that becomes lines of this log."""
        if self._settle is not None:
            self._settle()

    def write(self, line: bytes) -> None:
        """Writes a line as it is."""
        with contextlib.nullcontext() if self.lock is None else self.lock:
            if self._descriptor is None:
                self._stream.write(line.decode("ascii"))
                self._stream.flush()
            else:
                write_whole(self._descriptor, line)


def _line(record: logging.LogRecord, *, shared: bool) -> bytes:
    value: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": getattr(record, "event", "message"),
        "message": record.getMessage().strip(),
    }
    value |= {name: entry for name, entry in getattr(record, "fields", {}).items() if name not in _RESERVED}
    if record.exc_info and record.exc_info[0] is not None:
        value["error"] = record.exc_info[0].__name__
        value["traceback"] = logging.Formatter().formatException(record.exc_info)
    value = without_secrets(value)
    line = json.dumps(value).encode("ascii") + b"\n"
    for name in ("traceback", "message") if shared else ():
        beyond = len(line) - _LONGEST_SHARED
        if beyond > 0 and name in value:
            value[name] = value[name][: max(0, len(value[name]) - beyond - 16)] + " [cut]"
            line = json.dumps(value).encode("ascii") + b"\n"
    return line


@contextlib.contextmanager
def logging_as(form: str, *, quiet: bool = False, traces: bool = False) -> Iterator[None]:
    """Sets up the log of this process, and of worker processes that it starts, inside the block.

    Args:
        form: one of `LOG_FORMATS`.
        quiet: whether only warnings and errors are logged.
        traces: whether text shows the tracebacks that libraries log; JSON always has them, each in its field.
    """
    before = os.environ.get(LOG_VARIABLE)
    with contextlib.ExitStack() as closing:
        if form == "json":
            handler: logging.Handler = closing.enter_context(_json_of_launcher())
            closing.callback(_replace_hooks())
        else:
            handler = _TextHandler(traces=traces)
            closing.callback(setattr, sys, "excepthook", sys.excepthook)
            sys.excepthook = _print_uncaught
        closing.callback(_install(handler, form, logging.WARNING if quiet else logging.INFO))
        os.environ[LOG_VARIABLE] = form
        try:
            yield
        finally:
            os.environ.pop(LOG_VARIABLE)
            if before is not None:
                os.environ[LOG_VARIABLE] = before


def inherit_log() -> None:
    """Sets up the log of a worker process as its launcher's is; text needs nothing."""
    if os.environ.get(LOG_VARIABLE) != "json" or logs_json() or sys.stderr is None:
        return
    _replace_hooks()
    descriptor = 2 if _is_standard_error(sys.stderr) else None
    _install(_JsonHandler(descriptor, sys.stderr, shared=True), "json", logging.INFO)


@contextlib.contextmanager
def _json_of_launcher() -> Iterator[_JsonHandler]:
    """The handler of the process that a user started; where that has a real standard error, all of it is taken over."""
    if sys.stderr is None or not _is_standard_error(sys.stderr):  # closed, or replaced by who imports us
        with open(os.devnull, "w", encoding="ascii") as nowhere:
            yield _JsonHandler(None, sys.stderr or nowhere, shared=False)
        return
    handlers: list[_JsonHandler] = []

    def take(line: bytes, saved: int) -> None:
        handler = handlers[0] if handlers else _JsonHandler(saved, sys.stderr, shared=False)
        if not _is_record(line):
            text = line.decode("utf-8", "replace")
            fields = {"event": "output", "fields": {}}
            record = logging.makeLogRecord({"name": "stderr", "levelname": "INFO", "msg": text, **fields})
            line = _line(record, shared=False)[:-1]
        handler.write(line + b"\n")

    sys.stderr.flush()
    with captured_lines(take) as captured:
        handlers.append(_JsonHandler(captured.saved, sys.stderr, shared=False, settle=captured.settle))
        try:
            yield handlers[0]
        finally:
            sys.stderr.flush()


def _is_standard_error(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def _is_record(line: bytes) -> bool:
    """Whether a line is a record already, of a worker process."""
    if not line.startswith(b'{"time": '):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _install(handler: logging.Handler, form: str, level: int) -> Any:
    """Gives the loggers a handler; returns what takes it away again.

    Our own logger has a level of its own, so that what keeps Beam's log away does not keep ours.
    """
    own, root, warned = (logging.getLogger(name) for name in (_OWN, None, _WARNINGS))
    before = (own.level, own.propagate, warned.level, warned.propagate)
    own.addHandler(handler)
    own.setLevel(level)
    own.propagate = False
    root.addHandler(handler)
    if form == "json":
        warned.addHandler(handler)
        warned.setLevel(logging.WARNING)
        warned.propagate = False

    def restore() -> None:
        for logger in (own, root, warned):
            logger.removeHandler(handler)
        own.setLevel(before[0])
        warned.setLevel(before[2])
        own.propagate, warned.propagate = before[1], before[3]

    return restore


def _replace_hooks() -> Any:
    """Has warnings and uncaught errors logged; returns what undoes it."""
    before = (warnings.showwarning, sys.excepthook, threading.excepthook)

    def warn(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001 - Python gives it
        line: str | None = None,  # noqa: ARG001 - Python gives it
    ) -> None:
        fields = {"category": category.__name__, "where": f"{filename}:{lineno}"}
        event("warning", str(message), level=logging.WARNING, logger=_WARNINGS, **fields)

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _log_uncaught("uncaught error", kind, error, trace)

    def of_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None:
            name = "a thread" if found.thread is None else f"thread {found.thread.name}"
            _log_uncaught(f"uncaught error in {name}", found.exc_type, found.exc_value, found.exc_traceback)

    warnings.showwarning, sys.excepthook, threading.excepthook = warn, uncaught, of_thread

    def restore() -> None:
        warnings.showwarning, sys.excepthook, threading.excepthook = before

    return restore


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints the error that ends the process as Python does, but for secrets."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(without_secrets(text), end="", file=sys.stderr, flush=True)


def _log_uncaught(text: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    fields = {"event": "error", "fields": {}}
    logging.getLogger(_OWN).error("%s: %s", text, error, exc_info=(kind, error, trace), extra=fields)
