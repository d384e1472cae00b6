"""Scripts to read and to run: how a training script uses bucketsim."""
