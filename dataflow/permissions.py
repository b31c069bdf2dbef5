"""Asks Google whether the user may launch at all: jobs in the project, and the account that the workers run as.

Google answers such questions to whoever may see the project, so no right beyond those in question is needed. Where it
cannot be asked, that is a note; the launch itself will tell.
"""

import os
from typing import Any

from gristmill.dataflow.buckets import Finding, first_line
from gristmill.formats.errors import MissingExtraError

__all__ = ["credentials_finding", "find_credentials", "permission_findings"]

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_PATIENCE_SECONDS = 15
_JOBS = ("dataflow.jobs.create", "dataflow.jobs.get")
_ACT_AS = ("iam.serviceAccounts.actAs",)


def find_credentials() -> tuple[Any, str]:
    """The user's credentials by Google's own chain, None where there are none, and why there are none.

    Google's library looks for those of a machine on Google Cloud last, for some seconds (`GCE_METADATA_TIMEOUT`).

    Raises:
        MissingExtraError: the library that looks is not installed.
    """
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
    except ImportError as error:
        raise MissingExtraError("google-auth", "dataflow", "gristmill launch") from error
    try:
        return google.auth.default(scopes=_SCOPES)[0], ""
    except (GoogleAuthError, OSError, ValueError) as error:
        return None, first_line(error) or type(error).__name__


def credentials_finding(lacks: str, *, submits: bool) -> Finding:
    """What it means that there are no credentials.

    Args:
        lacks: why there are none.
        submits: whether a job is to be submitted with them.
    """
    remedy = "run `gcloud auth application-default login`, or have GOOGLE_APPLICATION_CREDENTIALS name a key"
    if submits:
        return Finding("problem", f"no credentials of Google Cloud: {lacks.rstrip('.')}; {remedy}")
    return Finding("note", f"buckets and permissions were not looked at, for want of credentials; {remedy}")


def permission_findings(credentials: Any, *, project: str, service_account: str | None) -> list[Finding]:
    """Asks about the permissions that a launch needs beside those in buckets.

    Args:
        credentials: the user's.
        project: the project that pays.
        service_account: address of the account that workers run as; None leaves it to the service.

    Raises:
        MissingExtraError: the library that asks is not installed.
    """
    try:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        raise MissingExtraError("google-auth", "dataflow", "gristmill launch") from error
    asked: list[tuple[str, str, tuple[str, ...]]] = [
        (f"project {project}", _address("cloudresourcemanager", f"v1/projects/{project}"), _JOBS)
    ]
    if service_account:
        place = _address("iam", f"v1/projects/-/serviceAccounts/{service_account}")
        asked.append((f"service account {service_account}", place, _ACT_AS))
    found = []
    with AuthorizedSession(credentials) as session:
        for what, address, wanted in asked:
            try:
                lacking = _lacking(session, address, wanted)
            except (GoogleAuthError, OSError, ValueError) as error:
                found.append(Finding("note", f"{what}: permissions cannot be looked at from here: {first_line(error)}"))
                continue
            if lacking:
                found.append(Finding("warning", f"{what}: you lack {', '.join(lacking)}, which a launch needs"))
            else:
                found.append(Finding("fine", f"{what}: you may {' and '.join(wanted)}"))
    return found


def _address(service: str, path: str) -> str:
    """URL of a question; the server is Google's, or the one that gcloud would ask instead."""
    own = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", f"https://{service}.googleapis.com/")
    return f"{own.rstrip('/')}/{path}:testIamPermissions"


def _lacking(session: Any, address: str, wanted: tuple[str, ...]) -> list[str]:
    answer = session.post(address, json={"permissions": list(wanted)}, timeout=_PATIENCE_SECONDS)
    answer.raise_for_status()
    return sorted(set(wanted) - set(answer.json().get("permissions", ())))
