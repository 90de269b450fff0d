"""The agent: its control flow, what it asks and accepts, and the services that it talks to."""
