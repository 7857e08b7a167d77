"""Errors as answers: a status code, and a JSON object with the name and the message. Pure."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tailrace import errors
from tailrace.cli.rowfiles.records import BadRecord
from tailrace.errors import TailraceError, Unreachable, VersionConflict
from tailrace_server.serving.board.pages import BadRequest, NotFound
from tailrace_server.serving.http.answers import json_answer
from tailrace_server.serving.web.versions import etag, version_text

# The seconds after which a client may ask again.
RETRY_SECONDS = 1
INTERNAL_ERROR = {"error": "InternalError", "message": "a bug of the node; its log says more"}


class NoSuchKey(NotFound):
    """The key does not exist."""


class Absent(TailraceError):
    """A write asks for a key that exists, and it does not."""


class NotJsonLines(TailraceError):
    """The body is of another type than the request takes."""


CODES: tuple[tuple[type[Exception], int], ...] = (
    (BadRequest, 400),
    (BadRecord, 400),
    (errors.BadPosition, 400),
    (errors.Forbidden, 403),
    (NotFound, 404),
    (errors.UnknownFeed, 404),
    (errors.VersionLost, 409),
    (errors.BatchBehind, 409),
    (errors.FeedExists, 409),
    (errors.DataGone, 410),
    (VersionConflict, 412),
    (Absent, 412),
    (errors.TooLarge, 413),
    (NotJsonLines, 415),
    (errors.OutcomeUnknown, 504),
    (errors.Retryable, 503),
    (errors.UnknownStage, 503),
)


def code_of(error: Exception) -> int:
    """Returns the status code of an answer with an error.

    504 says that the outcome of a write is not known, and 503 that nothing was written or a retry is safe.
    """
    if isinstance(error, Unreachable) and error.outcome == "unknown":
        return 504
    if type(error) is TailraceError:  # a node's, for a request that it cannot carry out
        return 400
    return next((code for kind, code in CODES if isinstance(error, kind)), 500)


def told(error: Exception) -> dict[str, Any]:
    """Returns an error as JSON."""
    more: dict[str, Any] = {}
    if isinstance(error, VersionConflict):
        more["current"] = None if error.current is None else version_text(error.current)
    elif isinstance(error, errors.BatchBehind):
        more["first_batch"] = error.first_batch
    # The notes say which partitions have their share of a batch that has failed.
    message = " ".join([str(error), *getattr(error, "__notes__", ())])
    kind = BadRequest if type(error) is TailraceError else type(error)
    return {"error": kind.__name__, "message": message, **more}


def error_answer(error: Exception) -> Response:
    """Returns the answer with an error."""
    code, headers = code_of(error), {}
    if code == 503:
        headers["retry-after"] = str(RETRY_SECONDS)
    if isinstance(error, VersionConflict) and error.current is not None:
        headers["etag"] = etag(error.current)
    return json_answer(INTERNAL_ERROR if code == 500 else told(error), code, headers)
