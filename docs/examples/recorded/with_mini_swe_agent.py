"""The guessing game as one run of mini-swe-agent, in a shell that knows one program."""

import os
import sys
import tempfile

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}
import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from player import Game

litellm.suppress_debug_info = True
game = Game(int(sys.argv[1]), guesses=4)


class Console(LocalEnvironment):
    """A shell of one program, to which every line goes."""

    def execute(self, action: dict, *args, **kwargs) -> dict:
        goes_on = game.guess(action["command"])
        done = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n"
        return super().execute({"command": f"printf '%s' '{game.question if goes_on else done}'"}, *args)


model = LitellmTextbasedModel(
    model_name="openai/policy",
    action_regex=r"\A(.*)\Z",
    observation_template="{{ output.output }}",
    cost_tracking="ignore_errors",
)
with tempfile.TemporaryDirectory() as folder:
    agent = DefaultAgent(
        model, Console(cwd=folder), system_template="play", instance_template="{{ task }}", step_limit=4
    )
    agent.run(game.question)
