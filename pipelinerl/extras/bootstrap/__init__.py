"""Makes a small model that can act in a domain: tokenizer, demonstrations, supervised training, gates."""
