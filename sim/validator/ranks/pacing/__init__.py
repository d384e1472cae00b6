"""One paced step: modules whose backward keeps a recorded schedule, and links that are emulated."""
