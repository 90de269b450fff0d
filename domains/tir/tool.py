"""What a model's answer asks the tool, and what it reads of the result. Pure functions but for `use`."""

from domains.fences import fenced
from domains.math.answers import has_box
from pipelinerl.base.thoughts import answer_part
from pipelinerl.extras.sandbox.host import Outcome, Sandbox

FENCE = "```"
_ENDED = {
    "timeout": "the program took too long",
    "output": "the program wrote too much and was ended",
    "signal": "the program crashed",
}


def program_of(answer: str) -> str | None:
    """The last block of Python behind the thoughts, unless a boxed result follows it; else None."""
    answer = answer_part(answer)
    blocks = [block for block in fenced(answer) if block.python]
    return None if not blocks or has_box(answer[blocks[-1].end :]) else blocks[-1].text


def shown(outcome: Outcome, most: int) -> str:
    """What a program wrote, and how it failed: its errors are shortened to their last lines."""
    parts = [outcome.stdout.strip()]
    if not outcome.ok:
        parts += [_ENDED.get(outcome.status, ""), outcome.stderr.strip()]
    text = "\n".join(part for part in parts if part) or "(no output)"
    # A fence in it would end the block that it is shown in.
    text = text.replace(FENCE, "'''")
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[len(text) - half :]}"


def block(text: str) -> str:
    """What a program wrote, as the message that the model reads."""
    return f"{FENCE}output\n{text}\n{FENCE}"


async def use(box: Sandbox, program: str, most: int) -> tuple[str, bool]:
    """The block that the model reads, and whether the program ran to its end."""
    outcome = await box.run(program)
    return block(shown(outcome, most)), outcome.ok
