"""Keeps the run's files in a bucket, from which a replacement learner continues; they outlive the deployment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from runtime.aws.run_files import ResultsError, RunFiles, files_in, upload_order
from runtime.errors import RunError
from runtime.money.model import UPLOAD_INTERVAL_S
from runtime.records import layout


class ResultsBucket:
    """Mirrors a run's directory under a prefix, all but its ledger, which has a place of its own.

    Changes follow at most every `UPLOAD_INTERVAL_S` seconds: if the instance vanishes, its replacement repeats the
    rounds since then, with the same results if they are synchronous. A learner that has lost the run begins no upload.
    """

    def __init__(
        self,
        files: RunFiles,
        directory: Path,
        check_owner: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the upload; sends no request yet.

        Args:
            files: The run's files in the bucket.
            directory: The run's directory.
            check_owner: Raises `LostRunError` if another learner continues the run.
            clock: Monotonic seconds.
        """
        self._files = files
        self._directory = directory
        self._check_owner = check_owner
        self._clock = clock
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._uploaded_at_s = -UPLOAD_INTERVAL_S

    def download(self, ledger: str) -> None:
        """Replaces the directory's contents with the run's, if there is one.

        Args:
            ledger: Contents of its ledger; empty if there is none.

        Raises:
            ResultsError: The bucket cannot be read, or an unforeseen error occurred: another attempt may succeed, and a
                deployment must not end before it trains.
        """
        try:
            names = self._files.download(self._directory, ledger)
        except RunError:
            raise
        except Exception as error:
            raise ResultsError(
                f"the results bucket {self._files.url}: the run cannot be put into {self._directory}: "
                f"{type(error).__name__}: {error}"
            ) from error
        stamps = self._stamps()
        # A checkpoint that is not in the directory any more is deleted from the bucket with the next upload.
        self._uploaded = {name: stamps.get(name, (0, 0)) for name in names}

    def round_finished(self) -> None:
        """Uploads changes, if the last upload is long enough ago; raises like `upload`."""
        if self._clock() - self._uploaded_at_s >= UPLOAD_INTERVAL_S:
            self.upload()

    def upload(self) -> None:
        """Uploads all changes.

        Raises:
            LostRunError: Another learner continues the run; nothing was uploaded.
            LedgerError: Whether one does is not known.
            ResultsError: The bucket cannot be read or written.
        """
        self._check_owner()
        stamps = self._stamps()
        for name in sorted(stamps, key=upload_order):
            if self._uploaded.get(name) != stamps[name]:
                self._files.write(name, (self._directory / name).read_bytes())
                self._uploaded[name] = stamps[name]
        for name in [*self._uploaded]:
            if layout.CHECKPOINT_FILE.fullmatch(name) and name not in stamps:
                self._files.delete(name)
                del self._uploaded[name]
        self._uploaded_at_s = self._clock()

    def clear(self, folder: str) -> str:
        """Empties a folder under the run's prefix that is not part of its directory.

        Args:
            folder: Its name; ends in ``/``.

        Returns:
            Its location, ``s3://BUCKET/PREFIX/``.

        Raises:
            ResultsError: The bucket cannot be written.
        """
        for found in self._files.objects(folder):
            self._files.delete(found["Key"].removeprefix(self._files.prefix))
        return self._files.url + folder

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Returns time and size of each of the directory's files, by name."""
        found = {path: path.stat() for path in files_in(self._directory)}
        return {
            path.relative_to(self._directory).as_posix(): (status.st_mtime_ns, status.st_size)
            for path, status in found.items()
        }
