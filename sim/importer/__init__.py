"""What clusters already write, as our nouns: traces, logs and dumps of other tools."""
