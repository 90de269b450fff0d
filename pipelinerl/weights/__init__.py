"""The trainer's side of a weight update: who takes part, the steps with each engine, the transports.

Called by `finetune/broadcast.py`; what both ends agree on is `engines/wire.py`.
"""
