"""An operator that runs language models on Kubernetes to declared latency and cost."""

__version__ = "0.1.0"
