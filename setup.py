"""Packaging: `conf/` travels inside the package so that configurations are found from any directory."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

CORE = [
    "torch>=2.11",  # models in trainer, reference and embedded engine
    "transformers>=5.16,<5.20",  # architectures
    "tokenizers>=0.22",  # tokenizers
    "jinja2>=3.1",  # chat templates; the report's page
    "accelerate>=1.10",  # several devices
    "safetensors>=0.6",  # weights on disk
    "numpy>=2.0",  # arrays of samples
    "hydra-core>=1.3,<1.4",  # composing configurations
    "pydantic>=2.11,<3",  # typed configuration, records of rollouts
    "msgspec>=0.20",  # encoding of stream records
    "xxhash>=3.5",  # checksums of stream records, weight files and parameters
    "aiohttp>=3.12",  # HTTP servers and clients
    "rank-bm25>=0.2.2",  # search in small corpora
    "bm25s>=0.3,<0.4",  # search in large corpora, through an index mapped into memory
    "wandb>=0.22",  # dashboards
    "rich>=14",  # tables and progress in the terminal
    "matplotlib>=3.9",  # figures
    "mpmath>=1.3",  # values of answers to many digits, in the domain math
    "inotify-simple>=2.0; sys_platform == 'linux'",  # waking readers of file streams
]

EXTRAS = {
    "vllm": ["vllm>=0.26"],  # engines on GPUs
    "lora": ["peft>=0.18"],  # low-rank adapters
    "linear": ["fla-core>=0.6,<0.7"],  # gated DeltaNet layers on GPUs
    "torchao": ["torchao>=0.18,<0.19"],  # AdamW with moments in 8 bits
    "redis": ["redis[hiredis]>=6"],  # streams and the RARO buffer on a server
    "dashboard": ["wandb-workspaces>=0.4"],  # publishes pipelinerl/observe/dashboard.yaml
    "math": ["math-verify>=0.9"],  # integrals, limits and the like in the domain math
    "parquet": ["pyarrow>=18"],  # data sets in parquet files
    "pretrained": ["gguf>=0.19"],  # transformers reads GGUF files with it
    "ray": ["ray>=2.52,<3", "redis[hiredis]>=6"],  # several hosts
    "reasoning-gym": ["reasoning-gym>=0.1.25,<0.2"],  # the domain of that name
    "textarena": ["textarena>=0.7.4,<0.8"],  # the domain of that name
    "verifiers": ["verifiers>=0.4,<0.5"],  # the domain of that name
    "reputation": ["gymnasium>=1.1", "stable-baselines3>=2.6"],  # the reputation game's interface, and PPO
    "dev": [  # what tests and lint need
        "pytest>=8",
        "pytest-asyncio>=1.0",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "psutil>=6",
        "openai>=2",
        "ruff>=0.12",
        "mypy>=1.16",
        "types-PyYAML",
        "types-psutil",
    ],
}

PACKAGES = find_packages(include=["pipelinerl*", "domains*", "retrieval_server*"])

setup(
    name="pipelinerl",
    version="0.1.0",
    description="Asynchronous reinforcement learning for language-model agents with in-flight weight updates",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=[*PACKAGES, "pipelinerl.conf"],
    package_dir={"pipelinerl.conf": "conf"},
    package_data={
        "pipelinerl.conf": ["**/*.yaml"],
        "domains": [
            "**/*.md",
            "**/*.json",
            "**/*.jsonl",
            "**/*.yaml",
            "**/*.safetensors",
            "**/*.txt",
            "**/*.jinja",
            "**/*.csv",
            "**/*.pdf",
            "**/*.png",
        ],
        "retrieval_server": ["**/*.md"],
        "pipelinerl": ["**/*.json", "**/*.yaml", "**/*.txt", "**/*.html", "**/*.css", "**/*.js"],
    },
    include_package_data=False,
    install_requires=CORE,
    entry_points={"vllm.general_plugins": ["pipelinerl = pipelinerl.engines.vllm.options:register_plugins"]},
    extras_require=EXTRAS,
)
