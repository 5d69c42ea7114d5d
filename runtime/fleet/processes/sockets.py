"""Location of the sockets of this machine's processes."""

from __future__ import annotations

import os
import tempfile

_PARENT_BYTES_MAX = 60


def socket_parent() -> str:
    """Returns the directory for temporary files, or /tmp if a socket's path would be too long."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) <= _PARENT_BYTES_MAX else "/tmp"
