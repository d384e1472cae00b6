"""What bucketsim says of what is bundled, kept as it was: the net under every rewrite."""
