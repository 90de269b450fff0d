"""The server of every engine that computes in its own process; `backend.py` says what a new one implements.

One thread answers HTTP (`server`, `openai_routes`), one owns back end, queue and update state (`thread`). A
request goes through `openai.protocol` (its fields), `served` (what may be asked), `sequence` (its state),
`pending` (between the two threads), the back end's step, and back.
"""
