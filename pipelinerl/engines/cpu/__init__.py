"""The CPU engine: a transformers causal LM as a back end of `engines/serving`.

Start it with `python -m pipelinerl.engines.cpu --model DIR --port P`. `backend` computes a step: `scheduler`
says which tokens, `attention` and `model` are the forward over KV slots. What requests begin with alike is
computed once per version (`prefixes`).
"""
