"""The one error type that commands print without a traceback."""


class ForgeError(ValueError):
    """An error that the reader can act on: one line that says what is wrong, where, and what to do."""
