"""The CPU engine: a transformers causal LM behind the project's inference routes.

Start it with `python -m pipelinerl.engines.cpu --model DIR --port P`. One thread answers HTTP
(`server`), one thread owns the model, the KV slots and the scheduler (`engine`). A request goes through
`protocol` (its fields), `served` (what may be asked), `sequence` (its state), `scheduler` (when it runs),
`attention` and `model` (the forward), `sampling` (the next token) and back. What requests begin with alike is
computed once per version (`prefixes`).
"""
