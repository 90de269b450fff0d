"""Several domains in one run: one loader that gathers their problems."""
