"""Any program that asks an endpoint of OpenAI or Anthropic becomes a rollout; imported by authors of domains.

    async with recorder.session(llm) as session:
        await session.run([sys.executable, "player.py"], deadline_s=60)  # it asks at OPENAI_BASE_URL
        texts = session.texts()

Every call of the program goes through the rollout's `llm` and is remembered. What is trained are the ids,
log-probabilities and weight versions that the engine gave, and nothing that the program says. What it may ask
and how it is answered: docs/recorder.md.
"""

from pipelinerl.extras.recorder.session import ProgramFailed, Session
from pipelinerl.extras.recorder.site import close, session

__all__ = ["ProgramFailed", "Session", "close", "session"]
