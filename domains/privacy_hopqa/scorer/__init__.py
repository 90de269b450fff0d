"""Privacy scoring: how much of a private fact a log of web queries reveals."""
