"""DDP around a module: its switches, its hooks, and buckets of any kind; the catalogue of other systems."""
