"""Attention on a GPU: scores that stay in a block, K/V tiles with an online softmax, tensor cores, gradients."""
