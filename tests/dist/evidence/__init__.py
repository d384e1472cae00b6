"""Real ZeRO, Megatron-Core and FSDP2, paced: what predictions of their buckets and their waits rest on."""
