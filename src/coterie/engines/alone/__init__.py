"""Large models on a GPU: a model at a time, its steps captured, several clients in flight."""
