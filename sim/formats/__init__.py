"""Everything that is read or written: our JSON documents, the DDP snippet, Perfetto traces, CSV."""
