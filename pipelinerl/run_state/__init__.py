"""What processes of a run know of each other: announced versions, resume point, accounting of rollouts."""
