"""Packaging: `conf/` travels inside the package so that configurations are found from any directory."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

CORE = [
    "torch>=2.11",
    "transformers>=5.16,<5.20",
    "tokenizers>=0.22",
    "jinja2>=3.1",
    "accelerate>=1.10",
    "safetensors>=0.6",
    "numpy>=2.0",
    "hydra-core>=1.3,<1.4",
    "pydantic>=2.11,<3",
    "msgspec>=0.20",
    "xxhash>=3.5",
    "aiohttp>=3.12",
    "rank-bm25>=0.2.2",
    "bm25s>=0.3,<0.4",
    "wandb>=0.22",
    "rich>=14",
    "matplotlib>=3.9",
    "mpmath>=1.3",
    "inotify-simple>=2.0; sys_platform == 'linux'",
]

EXTRAS = {
    "vllm": ["vllm>=0.26"],
    "lora": ["peft>=0.18"],
    "linear": ["fla-core>=0.6,<0.7"],
    "torchao": ["torchao>=0.18,<0.19"],
    "redis": ["redis[hiredis]>=6"],
    "dashboard": ["wandb-workspaces>=0.4"],
    "math": ["math-verify>=0.9"],
    "parquet": ["pyarrow>=18"],
    "pretrained": ["gguf>=0.19"],
    "ray": ["ray>=2.52,<3", "redis[hiredis]>=6"],
    "reasoning-gym": ["reasoning-gym>=0.1.25,<0.2"],
    "textarena": ["textarena>=0.7.4,<0.8"],
    "verifiers": ["verifiers>=0.4,<0.5"],
    "reputation": ["gymnasium>=1.1", "stable-baselines3>=2.6"],
    "dev": [
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
