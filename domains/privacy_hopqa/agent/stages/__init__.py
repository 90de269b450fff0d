"""The four stages: what each accepts from the model, as typed results."""
