"""All-reduce times of others: nccl-tests and OSU, as text, JSON and CSV."""
