"""The rollouts of a run as a static page: read, selected, joined and written."""
