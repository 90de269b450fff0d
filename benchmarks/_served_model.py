"""Runs in an environment with vLLM: serves one tiny model in this process and gives it two updates.

`served_architectures` starts it with a folder: `model/`, and `job.json` with texts and what the transport
says of each version. It writes `served.json` there: the class of vLLM's model, and of each weight version the
texts with the tokens that were sampled behind them and log-probabilities of all tokens but the first, or the
error that ended it.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

SAMPLED = 6


def scored(llm: Any, texts: list[list[int]]) -> list[dict[str, list[Any]]]:
    """Texts that go on with what the model prefers, and the log-probabilities that it says of all tokens."""
    from vllm import SamplingParams

    options = SamplingParams(
        temperature=0.0, max_tokens=SAMPLED, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    found = []
    prompts = [{"prompt_token_ids": text} for text in texts]
    for text, answer in zip(texts, llm.generate(prompts, options, use_tqdm=False), strict=True):
        new = answer.outputs[0]
        said = [*answer.prompt_logprobs[1:], *new.logprobs]
        ids = [*text, *new.token_ids]
        logprobs = [one[token].logprob for token, one in zip(ids[1:], said, strict=True)]
        found.append({"ids": ids, "logprobs": logprobs})
    return found


def serve(folder: Path, said: dict[str, Any]) -> None:
    """Fills `said` as it goes."""
    job = json.loads((folder / "job.json").read_text())
    from vllm import LLM
    from vllm.config import WeightTransferConfig

    from pipelinerl.engines.vllm.options import register_plugins

    register_plugins()
    llm = LLM(
        model=str(folder / "model"),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=job["positions"],
        max_num_seqs=4,
        enable_prefix_caching=False,
        weight_transfer_config=WeightTransferConfig(backend="file"),
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    said["model"] = type(runner.model).__name__
    said["states"].append(scored(llm, job["texts"]))
    llm.init_weight_transfer_engine({"init_info": {}})
    for info in job["versions"]:
        llm.start_weight_update()
        llm.update_weights({"update_info": info})
        llm.finish_weight_update(info["version"])
        said["states"].append(scored(llm, job["texts"]))


def main() -> int:
    folder, said = Path(sys.argv[1]), {"model": "", "states": []}
    try:
        serve(folder, said)
    except Exception as error:
        traceback.print_exc()
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        said["error"] = f"{type(first).__name__}: {first}".strip().splitlines()[0]
    (folder / "served.json").write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
