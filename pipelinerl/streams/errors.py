"""What can go wrong with a stream; every message is one line."""


class StreamError(Exception):
    """Base of all stream errors."""


class CorruptRecord(StreamError):
    """A complete record whose bytes are not what a writer of this project would have written."""


class UnsupportedValue(StreamError, TypeError):
    """A value that a record cannot carry."""


class WrongPassword(StreamError):
    """A server that asks for another password, or for none."""


class StreamBusy(StreamError):
    """A second writer for a partition."""
