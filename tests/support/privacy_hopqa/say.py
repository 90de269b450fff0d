"""What a scripted model says at each stage."""

import json

EMPTY_PLAN = "[]"
NO = '{"can_answer":false}'
SEARCH_MORE = '{"answered":false,"next_step":"search_more"}'


def plan(*queries: str, source: str = "web_search") -> str:
    return json.dumps([{"type": source, "parameters": {"query": query}} for query in queries])


def local(*queries: str) -> str:
    return plan(*queries, source="local_document_search")


def choose(*ids: str) -> str:
    return json.dumps({"selected_doc_ids": list(ids)})


def yes(answer: str) -> str:
    return json.dumps({"can_answer": True, "proposed_answer": answer, "confidence": 0.9})


def done(answer: str) -> str:
    return json.dumps({"answered": True, "answer": answer, "confidence": 0.9, "next_step": "done"})


def read_more(*ids: str) -> str:
    return json.dumps({"answered": False, "next_step": "read_more", "selected_doc_ids": list(ids)})
