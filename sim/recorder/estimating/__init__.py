"""How an estimate is made: a walk over autograd on tensors without data, and what operators cost."""
