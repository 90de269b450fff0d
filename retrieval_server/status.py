"""Exit statuses by which whoever started a server knows whether to start it again. Pure."""

FAILED = 1
"""Another start may do better: an address in use, a full disk, a machine without memory."""
REFUSED = 2
"""What was given cannot be served (a broken line, a missing file, a token that is none), now or later."""
_GIVEN = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def exit_status(error: BaseException) -> int:
    """The status with which a server ends that this error kept from serving."""
    return REFUSED if isinstance(error, _GIVEN) else FAILED
