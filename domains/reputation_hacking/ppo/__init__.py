"""PPO as the Assistant: training, saved models, paired evaluation, ablations and their figures."""
