"""Asks the store about the buckets of a run, with the user's own credentials: whether they are there, where, and open.

What the credentials may not see is said and not guessed. What the workers' own account may do is theirs to find out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import MissingExtraError

__all__ = ["bucket_findings", "Finding", "first_line", "what_failed"]

_PATIENCE_SECONDS = 15  # of all attempts at a question
_ANSWER_SECONDS = 10  # of one attempt
_READING = ("storage.objects.get", "storage.objects.list")
_WRITING = ("storage.objects.create", "storage.objects.delete", *_READING)
_CONTINENTS = {"US": ("us-",), "EU": ("europe-",), "ASIA": ("asia-",)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about a place.

    Attributes:
        level: "fine", "note" where it could not be seen, "warning", or "problem".
        message: the finding, as a sentence.
    """

    level: str
    message: str


def bucket_findings(
    writes: Sequence[str], reads: Sequence[str], *, credentials: Any, project: str, region: str
) -> list[Finding]:
    """Asks the store about the buckets of a run: whether they are there, where they lie, and what is allowed there.

    Args:
        writes: places on gs:// that files are written to; each bucket is asked about once.
        reads: places on gs:// that files are only read from.
        credentials: the user's; None asks as nobody, which shows no more than whether the store answers.
        project: the project that pays for asking.
        region: where the workers run.

    Raises:
        MissingExtraError: the library that asks is not installed.
    """
    try:
        from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, NotFound
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY
    except ImportError as error:
        raise MissingExtraError("google-cloud-storage", "dataflow", "gristmill launch") from error
    wanted = {**dict.fromkeys(_buckets(reads), _READING), **dict.fromkeys(_buckets(writes), _WRITING)}
    if credentials is None:
        client = storage.Client.create_anonymous_client()
    else:
        client = storage.Client(project=project, credentials=credentials)
    asking = {"timeout": _ANSWER_SECONDS, "retry": DEFAULT_RETRY.with_timeout(_PATIENCE_SECONDS)}
    found = []
    for name, permissions in sorted(wanted.items()):
        try:
            bucket = client.get_bucket(name, **asking)
        except NotFound:
            found.append(Finding("problem", f"gs://{name}: there is no such bucket; make it, or mend its name"))
            continue
        except GoogleAPICallError as error:  # the store answers, if not to this
            found.append(Finding("note", f"gs://{name}: cannot be looked at from here: {first_line(error)}"))
            continue
        except (GoogleAPIError, TransportError, OSError) as error:
            says = f"gs://{name}: no answer in {_PATIENCE_SECONDS} s: {what_failed(error)}"
            return [*found, Finding("problem", f"{says}; mend the network, or STORAGE_EMULATOR_HOST where that is set")]
        except GoogleAuthError as error:
            says = f"gs://{name}: your credentials are not taken: {first_line(error)}"
            return [*found, Finding("problem", f"{says}; renew them by `gcloud auth application-default login`")]
        found.append(_place(name, str(bucket.location or ""), region))
        try:
            allowed = bucket.test_iam_permissions(list(permissions), **asking)
        except (GoogleAPIError, GoogleAuthError, OSError):
            continue  # the store does not say
        lacking = sorted(set(permissions) - set(allowed))
        if lacking:
            found.append(Finding("warning", f"gs://{name}: you lack {', '.join(lacking)}, which the job needs"))
    return found


def what_failed(error: BaseException) -> str:
    """What lies behind an error of a connection, whose own text tells of every attempt."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        inner = waiting.pop(0)
        if not isinstance(inner, BaseException) or id(inner) in seen:
            continue
        seen.add(id(inner))
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        waiting += [inner.__cause__, getattr(inner, "reason", None), *inner.args, inner.__context__]
    return first_line(error)


def _buckets(urls: Iterable[str]) -> Iterable[str]:
    return (url.removeprefix("gs://").split("/", 1)[0] for url in urls if url.startswith("gs://"))


def _place(name: str, location: str, region: str) -> Finding:
    """Whether a bucket lies where the workers run; bytes that cross regions cost money and time."""
    here = location.upper()
    near = here == region.upper() or region.startswith(_CONTINENTS.get(here, ("-",)))
    if near:
        return Finding("fine", f"gs://{name}: lies in {here}, near the workers in {region}")
    return Finding(
        "warning",
        f"gs://{name}: lies in {here or '?'}, the workers in {region}; traffic between regions is paid for",
    )


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return str(error).strip().split("\n", 1)[0]
