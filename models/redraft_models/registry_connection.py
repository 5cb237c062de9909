"""One connection to MLflow: which servers are taken, how long anybody waits, what its failures are called.

Two limits hold. A read ends within `timeout_seconds` of wall time, whatever the server does (MLflow's own
default is 120 s a try and seven retries, 246 s in all on a closed port). A transfer or a write may be silent
for `transfer_seconds`, because a server may take long to store an artifact; writes are tried again after a
failure.
"""

import fcntl
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from redraft_models.errors import AdapterRejected, RegistryError, RegistryUnavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

_READ_PAUSE = 0.2
_WRITE_PAUSES = (0.5, 2.0)
_WRITE_PATIENCE_SECONDS = 20.0
_MOST_WAITING = 16
_UNAVAILABLE = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"}


class Connection:
    """MLflow at `tracking_uri` (`sqlite:///path` or http(s)), made once and safe to share between threads.

    `artifact_root` is where a sqlite store keeps artifacts (beside the database file unless given); a server
    decides that for itself. Making a connection to a server asks it nothing; a sqlite file is created at
    once.

    Raises RegistryError for any other kind of URI or an unusable database.
    """

    def __init__(
        self,
        tracking_uri: str,
        *,
        timeout_seconds: float = 5.0,
        artifact_root: Path | None = None,
        transfer_seconds: int = 60,
    ) -> None:
        database = _checked_uri(tracking_uri)
        self.tracking_uri = tracking_uri
        self.remote = database is None
        self.shown_uri = masked(tracking_uri)
        self._timeout_seconds = timeout_seconds
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._artifact_root = artifact_root
        if database is not None and artifact_root is None:
            self._artifact_root = database.parent / "artifacts"
        _set_defaults(transfer_seconds)
        self._client = self._open(database)

    def _open(self, database: Path | None) -> "MlflowClient":
        from mlflow import MlflowClient

        with self._translated("open the store"):
            if database is None:
                return MlflowClient(self.tracking_uri, registry_uri=self.tracking_uri)
            database.parent.mkdir(parents=True, exist_ok=True)
            with _exclusive(database.with_name(database.name + ".lock")):
                client = MlflowClient(self.tracking_uri, registry_uri=self.tracking_uri)
                self._make_tables(client)
            return client

    def _make_tables(self, client: "MlflowClient") -> None:
        """Both stores create their tables at first use; two processes doing so at once would collide."""
        try:
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
        except Exception as error:
            # Whoever holds the file will let it go; until then every call says that it is unavailable.
            if "database is locked" not in str(error):
                raise
            logger.warning("MLflow's database at %s is locked by another process", self.shown_uri)

    def _read(self, what: str, call: Callable[[], T]) -> T:
        """Result of `call` within the read limit, in a thread that is left behind if it hangs."""
        if not self._waiting.acquire(blocking=False):
            raise RegistryUnavailable(
                f"MLflow at {self.shown_uri} has left {_MOST_WAITING} earlier calls unanswered; not asking "
                "again yet."
            )
        answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._answer, args=(call, answers), daemon=True, name="mlflow-read").start()
        try:
            result, error = answers.get(timeout=self._timeout_seconds)
        except queue.Empty:
            raise RegistryUnavailable(
                f"MLflow at {self.shown_uri} did not {what} within {self._timeout_seconds:g} s; "
                "check that it runs and is not overloaded."
            ) from None
        with self._translated(what):
            if error is not None:
                raise error
        return result  # type: ignore[return-value]  # a None here is the call's own None

    def _answer(
        self, call: Callable[[], T], answers: "queue.SimpleQueue[tuple[T | None, Exception | None]]"
    ) -> None:
        try:
            answers.put((_twice(call), None))
        except Exception as error:  # handed to the waiting thread, which translates it
            answers.put((None, error))
        finally:
            self._waiting.release()

    def _read_or_none(self, what: str, call: Callable[[], T]) -> T | None:
        """As `_read`, but None where MLflow says that the thing does not exist."""

        def found() -> T | None:
            try:
                return call()
            except Exception as error:
                if is_absent(error):
                    return None
                raise

        return self._read(what, found)

    def _write(self, what: str, call: Callable[[], T]) -> T:
        """Result of `call`, which must be safe to repeat: tried again while the server fails quickly."""
        start = time.monotonic()
        for pause in _WRITE_PAUSES:
            try:
                return self._attempt(what, call)
            except RegistryUnavailable as error:
                if time.monotonic() - start > _WRITE_PATIENCE_SECONDS:
                    raise
                logger.warning("%s Trying again in %.1f s.", error, pause)
                time.sleep(pause)
        return self._attempt(what, call)

    def _attempt(self, what: str, call: Callable[[], T]) -> T:
        with self._translated(what):
            return call()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn whatever the client library raises into this package's errors."""
        try:
            yield
        except (RegistryError, AdapterRejected):
            raise
        except Exception as error:
            kind = RegistryUnavailable if _is_unavailable(error) else RegistryError
            raise kind(f"MLflow at {self.shown_uri} could not {what}: {_first_line(error)}") from error


def _checked_uri(uri: str) -> Path | None:
    """The database file of a sqlite URI, None for a server."""
    if re.match(r"https?://[^/]+", uri):
        return None
    if uri.startswith("sqlite:///") and uri not in ("sqlite:///", "sqlite:///:memory:"):
        return Path(uri.removeprefix("sqlite:///")).absolute()
    shown = masked(uri)
    raise RegistryError(
        f"The tracking URI {shown!r} is not supported; set MLFLOW_TRACKING_URI to a server "
        "(http://host:port) or to "
        "a database file (sqlite:////absolute/path/mlflow.db)."
    )


def masked(text: str) -> str:
    """The text without user names and passwords of addresses in it."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def _set_defaults(transfer_seconds: int) -> None:
    """Fill in MLflow's own settings, which it takes from the environment alone, where nobody has set them.

    No retry inside the client: it would repeat requests that are not safe to repeat (creating a version) and
    hide a dead server for minutes. Nothing but our own output on standard output; no usage reports.
    """
    for name, value in {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(transfer_seconds),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _twice(call: Callable[[], T]) -> T:
    """One more try where a first one failed: servers close idle connections just as we use them again."""
    try:
        return call()
    except Exception as error:
        if not _is_unavailable(error):
            raise
    time.sleep(_READ_PAUSE)
    return call()


def is_absent(error: Exception) -> bool:
    """Whether MLflow says that a model, version, alias or run does not exist.

    A missing alias comes as INVALID_PARAMETER_VALUE (3.17), so its text has to tell it from a bad argument.
    """
    code = getattr(error, "error_code", None)
    if code == "INVALID_PARAMETER_VALUE":
        return bool(re.search(r"alias.*not found", str(error), re.IGNORECASE | re.DOTALL))
    return code == "RESOURCE_DOES_NOT_EXIST"


def already_exists(error: Exception) -> bool:
    """Whether MLflow says that a name is taken, as it does to the slower of two creators."""
    return getattr(error, "error_code", None) == "RESOURCE_ALREADY_EXISTS"


def _is_unavailable(error: Exception) -> bool:
    import requests

    if isinstance(error, requests.RequestException):
        return error.response is None or error.response.status_code >= 500
    return getattr(error, "error_code", None) in _UNAVAILABLE or _collided(error)


def _collided(error: Exception) -> bool:
    """Whether two wrote one new row (a tag, an alias) at the same time; who tries again overwrites it."""
    code = getattr(error, "error_code", None)
    return code == "BAD_REQUEST" and bool(re.search(r"IntegrityError|UniqueViolation", str(error)))


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return masked(text.splitlines()[0][:500])
