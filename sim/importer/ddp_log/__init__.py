"""What DDP logs of itself: ``_get_ddp_logging_data()``."""

from sim.importer.ddp_log.logged_buckets import read_ddp_log

__all__ = ["read_ddp_log"]
