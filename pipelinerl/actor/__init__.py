"""Run rollouts of a domain with bounded staleness and publish whole groups.

    python -m pipelinerl.actor OUTPUT_DIR --job IDX

One process schedules (`scheduler`, `budget`, `sampler`, `evaluation`: pure; `run`: the edge), worker
processes run rollouts by the hundred on one event loop each (`runner` in `worker`). No torch here.
"""
