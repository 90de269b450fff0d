"""A transformers model from a local folder as a classifier of query logs.

A sequence classifier gives the probability of its positive label: the one called `yes`, else the second of
two, else the sigmoid of a single logit. A causal model is asked a question (`prompts/classify.md` or a file
of the user's) and gives the probability of `Yes` against `No` as its next token. Nothing is downloaded.
"""

import json
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from domains.privacy_hopqa.scorer.protocol import ClassifierError, Example
from domains.privacy_hopqa.scorer.templates import read_template

DEFAULT_PROMPT = Path(__file__).parent / "prompts" / "classify.md"
_YES, _NO = ("Yes", " Yes", "yes", " yes", "YES"), ("No", " No", "no", " no", "NO")
_PLACEHOLDERS = ("company", "queries", "facts")


class TransformerClassifier:
    """Scores in batches; one call at a time. Raises ValueError for a folder or prompt that cannot be used."""

    def __init__(
        self, folder: Path, prompt: Path = DEFAULT_PROMPT, batch_size: int = 8, device: str | None = None
    ) -> None:
        config = _config(folder)
        self.name = f"transformers:{folder.name}"
        self._template = read_template(prompt, _PLACEHOLDERS)
        text = (folder / "config.json").read_bytes() + prompt.read_bytes()
        self.version = sha256(text).hexdigest()[:12]
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._batch_size = batch_size
        self._max_tokens = int(config.get("max_position_embeddings") or 0)
        self._generative = not any("SequenceClass" in name for name in config.get("architectures") or ())
        kind = AutoModelForCausalLM if self._generative else AutoModelForSequenceClassification
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.padding_side = "left" if self._generative else "right"
        self._model = kind.from_pretrained(folder, local_files_only=True, dtype="auto")
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model.to(self._device).eval()
        self._lock = threading.Lock()
        if self._generative:
            self._yes, self._no = self._first_tokens(_YES), self._first_tokens(_NO)
            if not self._yes or not self._no or set(self._yes) & set(self._no):
                raise ValueError(f"{folder}: its tokenizer cannot tell Yes from No by the first token")
        else:
            self._positive = _positive_label(config)

    def score(self, examples: Sequence[Example]) -> list[float]:
        """One probability per example. Raises ClassifierError for a prompt that the model cannot take."""
        texts = [self._text(example) for example in examples]
        with self._lock:
            return [
                value
                for start in range(0, len(texts), self._batch_size)
                for value in self._batch(texts[start : start + self._batch_size])
            ]

    def _text(self, example: Example) -> str:
        facts = "\n".join(f"- {fact.question} {fact.answer}" for fact in example.facts)
        queries = "\n".join(f"{n}. {query}" for n, query in enumerate(example.queries, 1))
        text = self._template.substitute(company=example.company, queries=queries, facts=facts)
        if not self._generative or self._tokenizer.chat_template is None:
            return text
        messages = [{"role": "user", "content": text}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    @torch.inference_mode()
    def _batch(self, texts: list[str]) -> list[float]:
        special = not (self._generative and self._tokenizer.chat_template is not None)
        batch = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=special)
        length = int(batch["attention_mask"].sum(dim=1).max())
        if self._max_tokens and length > self._max_tokens:
            raise ClassifierError(f"a prompt has {length} tokens; {self.name} takes {self._max_tokens}")
        inputs = {key: batch[key].to(self._device) for key in ("input_ids", "attention_mask")}
        logits = self._model(**inputs).logits.float()
        return [float(value) for value in self._probabilities(logits)]

    def _probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities [batch] from logits [batch, length, vocabulary] or [batch, labels]."""
        if self._generative:
            last = logits[:, -1]
            sides = [last[:, ids].logsumexp(dim=-1) for ids in (self._yes, self._no)]
            return torch.sigmoid(sides[0] - sides[1])
        if self._positive is None:
            return torch.sigmoid(logits[:, 0])
        return logits.softmax(dim=-1)[:, self._positive]

    def _first_tokens(self, words: Sequence[str]) -> list[int]:
        encoded = (self._tokenizer.encode(word, add_special_tokens=False) for word in words)
        return sorted({ids[0] for ids in encoded if len(ids) == 1})


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no config.json; give the folder of a transformers model")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _positive_label(config: dict[str, Any]) -> int | None:
    """Index of the positive label; None for a single logit. Raises ValueError if it cannot be told."""
    labels = {int(number): str(name).lower() for number, name in (config.get("id2label") or {}).items()}
    named = [number for number, name in labels.items() if name == "yes"]
    if named:
        return named[0]
    if len(labels) == 1:
        return None
    if len(labels) in (0, 2):
        return 1
    raise ValueError(
        f"the model has {len(labels)} labels and none is called yes; set id2label in config.json"
    )
