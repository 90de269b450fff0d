"""The trainer's side of a weight update: who takes part, the steps with each engine, the transports."""
