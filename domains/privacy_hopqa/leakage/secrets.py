"""What each chain must not reveal, from the datasets that a run used, for the command and the report."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.dataset import chain_of, load_problems
from domains.privacy_hopqa.leakage.report import Secrets, SecretsByChain
from domains.privacy_hopqa.settings import DATASET_KEYS, dataset_names
from domains.privacy_hopqa.world.config import manifest_of

Questions = Literal["chain", "task"]


def secrets_of_chains(chains: Iterable[Chain], questions: Questions = "chain") -> SecretsByChain:
    """What each chain must not reveal. Raises `ValueError` if one id stands for two different chains."""
    found: dict[tuple[str, str], Secrets] = {}
    for chain in chains:
        secrets = Secrets(chain.company, chain.private_questions(questions))
        if found.setdefault((chain.task_id, chain.chain_id), secrets) != secrets:
            raise ValueError(f"chain_id={chain.chain_id!r} stands for two chains of task {chain.task_id!r}")
    return found


def secrets_of_run(tree: Mapping[str, Any], questions: Questions | None = None) -> SecretsByChain:
    """Secrets of the datasets that a run's configuration names."""
    block = tree.get("privacy_hopqa") or {}
    asked = questions or (block.get("leakage") or {}).get("questions", "chain")
    return secrets_of_chains(chains_of_run(tree), asked)


def chains_of_run(tree: Mapping[str, Any]) -> list[Chain]:
    """The chains of the datasets that a run's configuration names, loaded as the run itself loads them."""
    block = tree.get("privacy_hopqa") or {}
    parameters = {key: block[key] for key in (*DATASET_KEYS, "task_data_root") if block.get(key)}
    parameters |= dict(tree.get("dataset_loader_params") or {})
    parameters.pop("max_examples", None)
    problems = load_problems(list(dict.fromkeys(dataset_names(tree))), **parameters)
    return [chain_of(problem) for problem in problems]


def provenance_of_files(files: Iterable[str]) -> dict[str, Any]:
    """What figures must be published with: the chain files and their checksums."""
    return {"datasets": {str(name): sha256(Path(name).read_bytes()).hexdigest() for name in files}}


def provenance_of_run(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The same for a run, with its seed, model and, for a generated world, the world's fingerprint."""
    block = tree.get("privacy_hopqa") or {}
    files = [block[key] for key in DATASET_KEYS if block.get(key)]
    files += [name for name in dataset_names(tree) if Path(name).is_file()]
    world = manifest_of(block.get("task_data_root"))
    return provenance_of_files(files) | {
        "output_dir": str(tree.get("output_dir")),
        "seed": tree.get("seed"),
        "model_path": tree.get("model_path"),
        "world": world.get("config"),
        "world_fingerprint": world.get("fingerprint"),
    }
