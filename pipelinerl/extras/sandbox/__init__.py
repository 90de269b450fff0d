"""Programs that a model wrote, run where they can harm nothing: `host.Sandbox` is what domains use.

`host.py` runs in the process that asks; everything else runs in a process of its own, with the standard
library only: `template.py` prepares, `program.py` runs one program. `docs/sandbox.md` says what is promised.
"""
