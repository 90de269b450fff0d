"""OpenAI-compatible routes: what they accept, and their answers, for the CPU engine and the recorder."""
