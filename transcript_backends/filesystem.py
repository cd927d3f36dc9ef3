"""What is asked of a file system beyond files, and the way without it where it has no flush, no hard links or no locks.

What an error means decides: a call that is not offered here says nothing of the data, and there is another way or nothing to
do; a full, failing or absent disk is a failure of this one call.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import sys
from collections.abc import Iterator

_log = logging.getLogger(__name__)


def _numbers(*names: str) -> frozenset[int]:
    """Those that this platform has."""
    return frozenset(number for name in names if (number := getattr(errno, name, None)) is not None)


OUTAGES = _numbers(
    *("ENOSPC", "EDQUOT", "ENOMEM", "ENOBUFS", "EMFILE", "ENFILE"),  # no room, which may be made
    *("EINTR", "EAGAIN", "EBUSY", "ESTALE", "ETIMEDOUT", "EPIPE"),
    *("ENOTCONN", "ESHUTDOWN", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED"),  # a server or a FUSE daemon is not there
    *("EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENETRESET"),
)
"""The errors that pass by themselves, or when somebody makes room."""

_NOT_OFFERED = _numbers("ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL", "ENOTTY")
# Of directories, names, times and locks; not of a file's content, whose writing a server may have denied.
_REFUSED = _NOT_OFFERED | _numbers("EBADF", "EISDIR", "EPERM", "EACCES")
_FAILURES = OUTAGES | _numbers("EIO", "EROFS", "ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG")
_CLAIM = ".tmp-claim"
_DEAD_SECONDS = 60  # whoever claims a name for longer than this has died at it


def is_full(error: BaseException | None) -> bool:
    """Whether an error says that there is no room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class FileSystem:
    """Flushes, exclusive names and locks, as far as they are offered.

    Attributes:
        lacks: what was found not to be offered, and what follows from it; each is logged once, as a warning.
    """

    def __init__(self) -> None:
        self.lacks: dict[str, str] = {}

    def _tell(self, what: str, path: str, error: OSError, consequence: str) -> None:
        if what not in self.lacks:
            self.lacks[what] = f"the file system of {path} offers no {what} ({error.strerror or error}): {consequence}"
            _log.warning("%s", self.lacks[what])

    # --- flush --------------------------------------------------------------------------------------------------------

    def flush(self, file: int, path: str) -> None:
        """Return when the content of an open file is on the disk."""
        try:
            _flush(file)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
            self._tell("flush of files", path, error, "a power cut may lose what was stored just before")

    def flush_directory(self, path: str) -> None:
        """Return when the names in a directory are on the disk."""
        try:
            with _opened(path) as descriptor:
                os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._tell("flush of directories", path, error, "when names are on the disk is up to it")

    def make_directory(self, path: str) -> None:
        """Create a directory, given by its absolute path, where it is missing, with its parents, each name on the disk."""
        parent = os.path.dirname(path)
        if not os.path.isdir(path):
            self.make_directory(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        if os.access(parent, os.R_OK):  # a parent that is somebody else's was there before us
            self.flush_directory(parent)

    # --- times --------------------------------------------------------------------------------------------------------

    def stamp(self, file: int | str, ns: int, path: str) -> None:
        """Set a file's times, in nanoseconds; where that is not offered, they are as the file system has set them."""
        try:
            os.utime(file, ns=(ns, ns))
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._tell(
                "times of one's own",
                path,
                error,
                "versions of a document are told apart by the inode, the size and a coarser time",
            )

    # --- exclusive names ----------------------------------------------------------------------------------------------

    def name_new(self, source: str, target: str) -> None:
        """Give a file a name, and perhaps no longer its own, in one step that fails where the name is taken.

        Raises:
            FileExistsError: it is taken.
        """
        try:
            os.link(source, target)
            return
        except OSError as error:
            if _is_same(source, target):  # NFS may report a failure, "exists" as well, although the link was made
                return
            if error.errno in _FAILURES or error.errno == errno.EEXIST:
                raise
            self._tell("hard links", target, error, "names are given by a rename that does not replace")
        try:
            _rename_new(source, target)
            return
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _FAILURES:
                raise
            self._tell("rename that does not replace", target, error, "names are claimed by a file beside them")
        with self.locked(os.path.dirname(target)):
            _claim_and_rename(source, target)

    # --- locks --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, directory: str, *, required: bool = False) -> Iterator[None]:
        """Keep others who lock a directory out, in every process of this machine; nobody where there are no locks.

        Raises:
            OSError: there are none, and one is ``required`` (``ENOLCK``).
        """
        with contextlib.ExitStack() as held:
            try:
                fcntl.flock(held.enter_context(_opened(directory)), fcntl.LOCK_EX)
            except OSError as error:
                if not _has_no_locks(error):
                    raise
                self._tell("locks", directory, error, _WITHOUT_LOCKS)
                if required:
                    raise OSError(errno.ENOLCK, _NO_LOCKS, directory) from error
            yield

    def try_lock(self, file: int) -> bool:
        """Lock an open file until it is closed; False where another process has locked it.

        Raises:
            OSError: there are no locks (``ENOLCK``).
        """
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if not _has_no_locks(error):
                raise
            raise OSError(errno.ENOLCK, f"{_NO_LOCKS}, or use a directory on a local disk") from error
        return True


_NO_LOCKS = "this file system has no locks; mount it with them (Lustre: -o flock)"
_WITHOUT_LOCKS = (
    "a delete that is carried out late may remove what was stored again under the same name, and no document can be replaced "
    "by its version; mount it with locks (Lustre: -o flock)"
)


def _has_no_locks(error: OSError) -> bool:
    return error.errno in _REFUSED or error.errno == errno.ENOLCK


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _flush(file: int) -> None:
    if sys.platform == "darwin":  # whose fsync leaves the content in the disk's own cache
        try:
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
    os.fsync(file)


def _is_same(source: str, target: str) -> bool:
    try:
        return os.path.samestat(os.lstat(source), os.lstat(target))
    except OSError:
        return False


def _rename_new(source: str, target: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    before, after = os.fsencode(source), os.fsencode(target)
    if sys.platform == "darwin":
        exclusive = 4
        rename = getattr(libc, "renamex_np", None)
        failed = rename(before, after, exclusive) if rename else -1
    else:
        no_replace, at_cwd = 1, -100
        rename = getattr(libc, "renameat2", None)  # not in every C library
        failed = rename(at_cwd, before, at_cwd, after, no_replace) if rename else -1
    if failed:
        code = ctypes.get_errno() if rename else errno.ENOSYS
        raise OSError(code, os.strerror(code), target)


def _claim_and_rename(source: str, target: str) -> None:
    """Rename by whoever creates a file beside the target. A claim outlives its owner for a minute; readers see none.

    Raises:
        FileExistsError: the name is taken.
        OSError: somebody else claims it (``EBUSY``).
    """
    directory, name = os.path.split(target)
    claim = os.path.join(directory, f".{name[:150]}{_CLAIM}")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            # Both times are of the file system's own clock: the source was changed just now.
            if os.lstat(source).st_ctime - os.lstat(claim).st_ctime > _DEAD_SECONDS:
                os.unlink(claim)
        _see_free(target)
        raise OSError(errno.EBUSY, "another process is about to give this name", target) from None
    try:
        _see_free(target)
        os.rename(source, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim)


def _see_free(target: str) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
