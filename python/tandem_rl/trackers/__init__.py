"""Weights & Biases and MLflow for a run: `python -m tandem_rl.trackers` reads a run directory and sends what it holds
(docs/trackers.md). The run is only read, so training is the same with and without it."""
